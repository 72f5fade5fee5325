import { useEffect, useState } from "preact/hooks";
import { ApiError, logIn } from "../api/client";
import { live } from "../api/live";
import { forgetAll } from "../api/query";
import { Button } from "../ui/Button";
import { Field } from "../ui/Field";
import { CopyCommand } from "../ui/values";
import { Logo } from "./Logo";

/** Asks for a token; the server answers with a session in a cookie that scripts cannot read. */
export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  // Whoever logs in next may be somebody else.
  useEffect(() => {
    live.stop();
    forgetAll();
  }, []);
  return (
    <main class="login">
      <div class="card">
        <div class="card-body stack">
          <div class="row"><Logo /><h1>Shoal</h1></div>
          <p class="muted">This server asks who you are. Log in with a token; it stays on the server, the browser keeps a session.</p>
          <form
            class="stack"
            onSubmit={(event) => {
              event.preventDefault();
              setBusy(true);
              setError(null);
              logIn(token.trim())
                .then(() => live.start(), (caught: unknown) => {
                  setError(caught instanceof ApiError ? caught : new ApiError(0, "bug", String(caught)));
                })
                .finally(() => setBusy(false));
            }}
          >
            <Field label="Token" type="password" value={token} onChange={setToken} error={error && [error.message, error.hint].filter(Boolean).join(" ")} autoFocus name="token" />
            <Button kind="primary" type="submit" disabled={busy || token.trim() === ""}>Log in</Button>
          </form>
          <div class="stack tight">
            <p class="small muted">A token is made where the ledger is reachable:</p>
            <CopyCommand command="shoal serve token add NAME --role viewer" />
          </div>
        </div>
      </div>
    </main>
  );
}
