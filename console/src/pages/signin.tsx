import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { signIn, signInError, signOn, signOnName } from "../api/session";
import { label } from "../lib/text";
import { Field, Input } from "../ui/fields";
import { Logo } from "../ui/icons";
import { Button, Failure, Snippet } from "../ui/kit";

export function SignIn() {
  const key = useSignal("");
  const busy = useSignal(false);
  const error = useSignal("");
  const provider = useSignal("");
  useEffect(() => {
    signOnName().then((name) => {
      provider.value = name;
    });
  }, []);
  const attempt = async (act: () => Promise<void>) => {
    busy.value = true;
    error.value = "";
    signInError.value = "";
    try {
      await act();
    } catch (err) {
      error.value = (err as Error).message;
    }
    busy.value = false;
  };
  const go = (e: Event) => {
    e.preventDefault();
    return attempt(() => signIn({ key: key.value.trim() }));
  };
  const said = error.value || signInError.value;
  return (
    <main class="signin">
      <div class="signin-box">
        <div class="row">
          <Logo size={32} />
          <h1>Sign in to Cove</h1>
        </div>
        {said && <Failure error={label(said, 1000)} />}
        {provider.value && (
          <>
            <Button kind="primary" busy={busy.value} onClick={() => attempt(signOn)}>
              Sign in with {label(provider.value)}
            </Button>
            <div class="or">
              <span>or, with an API key</span>
            </div>
          </>
        )}
        <form class="stack" onSubmit={go}>
          <Field label="API key" hint="It is sent once, and not kept in the browser.">
            <Input
              class="mono"
              type="password"
              name="key"
              autocomplete="current-password"
              spellcheck={false}
              placeholder="cove_…"
              required
              value={key}
            />
          </Field>
          <Button kind="primary" type="submit" busy={busy.value}>
            Sign in
          </Button>
        </form>
        <div class="or">
          <span>or, on the machine of the server</span>
        </div>
        <Snippet text="cove console" lang="Command" />
        <p class="muted small">It opens this page, signed in, by a link that works once.</p>
      </div>
    </main>
  );
}
