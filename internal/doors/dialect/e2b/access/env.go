package access

import "maps"

// Env returns the environment of a program that a client starts in a sandbox: what
// the client wants, and the variables by which programs know that they are in a
// sandbox and in which one, as a fork has another than its parent. These are
// nobody's to change.
func Env(wanted map[string]string, id string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, wanted)
	env["E2B_SANDBOX"], env["E2B_SANDBOX_ID"] = "true", ToE2B(id)
	return env
}
