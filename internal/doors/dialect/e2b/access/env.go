package access

import "maps"

// Env returns the environment of a program that a client starts in a sandbox: the
// client's variables, and those that tell programs that they run in a sandbox and in
// which one, which differs for a fork. Clients cannot override the latter.
func Env(wanted map[string]string, id string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, wanted)
	env["E2B_SANDBOX"], env["E2B_SANDBOX_ID"] = "true", ToE2B(id)
	return env
}
