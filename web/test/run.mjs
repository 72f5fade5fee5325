// Compiles the tests with the bundler of the dashboard and runs them with Node's own runner, so that no other library
// is needed.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "vite";

const here = import.meta.dirname;
const out = mkdtempSync(join(tmpdir(), "shoal-web-"));
try {
  symlinkSync(join(here, "../node_modules"), join(out, "node_modules"));
  const names = readdirSync(here).filter((name) => /\.test\.tsx?$/.test(name));
  await build({
    configFile: false,
    root: join(here, ".."),
    logLevel: "error",
    build: {
      ssr: true,
      outDir: out,
      emptyOutDir: false,
      rolldownOptions: {
        input: Object.fromEntries(names.map((name) => [name.replace(/\.tsx?$/, ""), join(here, name)])),
        output: { entryFileNames: "[name].mjs" },
      },
    },
  });
  const files = names.map((name) => join(out, name.replace(/\.tsx?$/, ".mjs")));
  process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
