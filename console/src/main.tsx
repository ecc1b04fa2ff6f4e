import { render } from "preact";
import "./styles/tokens.css";
import "./styles/kit.css";
import "./styles/app.css";
import { onSignedOut } from "./api/client";
import { begin, session } from "./api/session";
import { App } from "./app";
import { stopFollowing } from "./state/live";
import { forgetAll } from "./ui/do";
import { applyTheme } from "./ui/theme";

applyTheme();
onSignedOut(() => {
  if (session.value) {
    session.value = null;
    stopFollowing();
    forgetAll();
  }
});
void begin();
render(<App />, document.getElementById("app")!);
