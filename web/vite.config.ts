import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** A classic script: it runs before the deferred module, so a chosen theme never flashes. */
const theme: Plugin = {
  name: "theme",
  transformIndexHtml: () => [{ tag: "script", attrs: { src: "theme.js" }, injectTo: "head" }],
};

let folder = "";

/** Compresses the files once, when they are built; the server picks what the browser takes. */
const precompress: Plugin = {
  name: "precompress",
  apply: "build",
  configResolved: (config) => {
    folder = resolve(config.root, config.build.outDir, "assets");
  },
  closeBundle() {
    for (const name of readdirSync(folder).filter((each) => /\.(js|css)$/.test(each))) {
      const content = readFileSync(join(folder, name));
      if (content.length < 400) continue;
      writeFileSync(join(folder, `${name}.gz`), gzipSync(content, { level: 9 }));
      writeFileSync(
        join(folder, `${name}.br`),
        brotliCompressSync(content, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }),
      );
    }
  },
};

/** Licences of the libraries want their text to go with every copy: one file with that of each that is in a chunk. */
const notices: Plugin = {
  name: "notices",
  apply: "build",
  generateBundle(_, bundle) {
    const folders = new Map<string, string>();
    for (const chunk of Object.values(bundle)) {
      for (const module of chunk.type === "chunk" ? chunk.moduleIds : []) {
        const found = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(module);
        if (found?.[1] !== undefined && found[2] !== undefined) folders.set(found[2], found[1]);
      }
    }
    const texts = [...folders].sort().map(([name, at]) => {
      const file = readdirSync(at).find((each) => /^licen[cs]e(\.\w+)?$/i.test(each));
      if (file === undefined) throw new Error(`${name} has no file with its licence`);
      const version: unknown = JSON.parse(readFileSync(join(at, "package.json"), "utf-8")).version;
      return `${name} ${version}\n\n${readFileSync(join(at, file), "utf-8").trim()}\n`;
    });
    const head = "The scripts of the dashboard contain these libraries.\n";
    this.emitFile({ type: "asset", fileName: "third-party-notices.txt", source: [head, ...texts].join("\n\n") });
  },
};

// The server puts its own sub-path into <base href>, so every address in the built files is relative.
export default defineConfig({
  base: "./",
  plugins: [theme, precompress, notices],
  build: {
    outDir: "../src/shoal/control/static",
    emptyOutDir: true,
    target: "es2022",
    manifest: "manifest.json",
    modulePreload: { polyfill: false },
    // One small file: a page whose styles could not be loaded while the server was away would stay without them.
    cssCodeSplit: false,
    reportCompressedSize: false,
    rolldownOptions: { checks: { pluginTimings: false, bundlerTimings: false } },
  },
  server: {
    host: "127.0.0.1",
    port: 5173,
    proxy: { "/api": { target: "http://127.0.0.1:8642", ws: true } },
  },
});
