package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// secret makes a secret of the red team.
func (w *harness) secret(name, value string) *sandbox.Secret {
	w.t.Helper()
	s, err := w.CreateSecret(asRed(w.t), sandbox.CreateSecretRequest{Name: name, Value: sandbox.NewSecretValue(value), Hosts: []string{"api.example.com"}})
	must(w.t, err)
	return s
}

// told returns the values that the gateway of a sandbox has, by the variable
// of their placeholder.
func (w *harness) told(ref string) map[string]string {
	w.t.Helper()
	r := w.record(w.get(ref).ID)
	_, values := w.gate(r.ID)
	got := map[string]string{}
	for _, b := range r.Bindings {
		if v, ok := values[b.Placeholder]; ok {
			got[b.Env] = v
		}
	}
	if len(got) != len(values) {
		w.t.Errorf("the gateway of %s has %d values for %d bindings", ref, len(values), len(got))
	}
	return got
}

func (w *harness) wantTold(what, ref string, want map[string]string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.told(ref)); diff != "" {
		w.t.Errorf("%s: the gateway of %s has other values (-want +got):\n%s", what, ref, diff)
	}
}

type values = map[string]string

// TestSecretsAreCarried makes instances of a sandbox with secrets in every way.
func TestSecretsAreCarried(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.secret("a", "value-a")
	w.secret("b", "value-b")
	x := w.create(sandbox.CreateRequest{Name: "x", Env: map[string]string{"PLAIN": "1"}, Secrets: map[string]string{"A": "a"}})
	if diff := cmp.Diff(map[string]string{"A": "a"}, x.Secrets); diff != "" {
		t.Errorf("the answer differs (-want +got):\n%s", diff)
	}
	w.wantTold("create", "x", values{"A": "value-a"})
	token := w.output("x", sandbox.ExecRequest{Shell: "printf %s $A"})
	if len(token) < 16 || strings.Contains(token, "value") {
		t.Errorf("the placeholder is %q", token)
	}
	same := func(ref string) {
		t.Helper()
		if got := w.output(ref, sandbox.ExecRequest{Shell: "printf %s $A"}); got != token {
			t.Errorf("%s has the placeholder %q, want %q: processes have it in memory", ref, got, token)
		}
	}
	w.fork("x", sandbox.ForkRequest{Name: "f"})
	w.wantTold("fork", "f", values{"A": "value-a"})
	same("f")
	w.snapshot("x", "s")
	w.create(sandbox.CreateRequest{Name: "again", Snapshot: "s", Secrets: map[string]string{"B": "b"}})
	w.wantTold("snapshot", "again", values{"A": "value-a", "B": "value-b"})
	same("again")
	w.create(sandbox.CreateRequest{Name: "other", Snapshot: "s", Secrets: map[string]string{"A": "b"}})
	w.wantTold("snapshot with another", "other", values{"A": "value-b"})
	w.pause("x")
	_, err := w.AttachSecret(ctx, "x", "b", "B")
	must(t, err)
	same("x") // resumes it
	w.wantTold("resume", "x", values{"A": "value-a", "B": "value-b"})
	_, err = w.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Snapshot: "s"})
	must(t, err)
	w.wantTold("restore keeps the present ones", "x", values{"A": "value-a", "B": "value-b"})
	_, err = w.DetachSecret(ctx, "x", "A")
	must(t, err)
	w.wantTold("detach", "x", values{"B": "value-b"})
	if got := w.output("x", sandbox.ExecRequest{Shell: "printf %s \"${A-unset}\""}); got != "unset" {
		t.Errorf("a detached secret's variable is %q", got)
	}
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	w.wantTold("merge keeps the parent's", "x", values{"B": "value-b"})
	w.restart()
	w.inStep("x", "value-b")
	w.wantTold("restart", "again", values{"A": "value-a", "B": "value-b"})
	w.agree()
}

func TestRotateAndDelete(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	made := w.secret("a", "one")
	for _, name := range []string{"x", "y", "paused"} {
		w.create(sandbox.CreateRequest{Name: name, Secrets: map[string]string{"A": "a"}})
	}
	w.create(sandbox.CreateRequest{Name: "without"})
	w.pause("paused")
	rotated, err := w.RotateSecret(ctx, made.ID, sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("two")})
	must(t, err)
	if rotated.Version != 2 || rotated.RotatedAt == nil {
		t.Errorf("rotated: %+v", rotated)
	}
	for _, name := range []string{"x", "y"} {
		w.wantTold("rotate", name, values{"A": "two"})
	}
	if got := w.get("paused").State; got != sandbox.StatePaused {
		t.Errorf("a rotation left a paused sandbox %s", got)
	}
	// One gateway does not answer: the others get the change, and the caller an error.
	w.state.Fail(memory.StepSetNetwork, memory.Before, fmt.Errorf("no answer"))
	_, err = w.RotateSecret(ctx, "a", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("three")})
	wantCode(t, err, sandbox.CodeUnavailable)
	must(t, w.Repair(ctx))
	for _, name := range []string{"x", "y"} {
		w.wantTold("later", name, values{"A": "three"})
	}
	must(t, w.DeleteSecret(ctx, "a"))
	for _, name := range []string{"x", "y"} {
		w.wantTold("delete", name, values{})
		n, _ := w.state.Network(w.record(w.get(name).ID).Instance)
		if len(n.Bindings) != 1 || !n.Bindings[0].Revoked {
			t.Errorf("after the delete %s has %+v", name, n.Bindings)
		}
	}
	_, err = w.Resume(ctx, "paused", sandbox.ResumeRequest{})
	must(t, err)
	w.wantTold("resumed after the delete", "paused", values{})
	wantCode(t, w.DeleteSecret(ctx, "a"), sandbox.CodeNotFound)
	// A new secret with the same name is another secret.
	w.secret("a", "new")
	w.wantTold("same name", "x", values{})
	w.inStep("x")
}

func TestLastUse(t *testing.T) {
	w := newHarness(t)
	w.secret("a", "v")
	w.secret("b", "v")
	x := w.create(sandbox.CreateRequest{Secrets: map[string]string{"A": "a", "B": "b"}})
	at := time.Now().Add(time.Second).UTC()
	for _, ev := range []sandbox.NetworkEvent{
		{Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Secret: "a", Time: at},
		{Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Secret: "a", Time: at.Add(-time.Millisecond)},
		{Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkBlocked, Secret: "b", Time: at},
		{Kind: sandbox.NetworkConnection, Verdict: sandbox.NetworkAllowed, Secret: "b", Time: at},
		{Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Secret: "another", Time: at},
	} {
		ev.SandboxID = x.ID
		w.state.AddEvent(ev)
	}
	must(t, w.Repair(t.Context()))
	for name, want := range map[string]*time.Time{"a": &at, "b": nil} {
		got, err := w.GetSecret(asRed(t), name)
		must(t, err)
		if diff := cmp.Diff(want, got.LastUsedAt); diff != "" {
			t.Errorf("%s was used (-want +got):\n%s", name, diff)
		}
	}
	// An event appears in the log a little after its time, perhaps after a check.
	late := time.Now().Add(-secrets.UseLag / 2).UTC()
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Secret: "b", Time: late})
	must(t, w.Repair(t.Context()))
	got, err := w.GetSecret(asRed(t), "b")
	must(t, err)
	if diff := cmp.Diff(&late, got.LastUsedAt); diff != "" {
		t.Errorf("b was used (-want +got):\n%s", diff)
	}
}

// TestSecretsMeetEnvironment sets a variable that has a placeholder, in every way there
// is.
func TestSecretsMeetEnvironment(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.secret("a", "v")
	both := map[string]string{"A": "mine"}
	_, err := w.Create(ctx, sandbox.CreateRequest{Env: both, Secrets: map[string]string{"A": "a"}})
	wantCode(t, err, sandbox.CodeInvalid)
	w.create(sandbox.CreateRequest{Name: "x", Secrets: map[string]string{"A": "a"}})
	_, err = w.Update(ctx, "x", sandbox.UpdateRequest{Env: both})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.Fork(ctx, "x", sandbox.ForkRequest{Env: both})
	wantCode(t, err, sandbox.CodeInvalid)
	w.snapshot("x", "s")
	_, err = w.Create(ctx, sandbox.CreateRequest{Snapshot: "s", Env: both})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.AttachSecret(ctx, "x", "a", "A")
	wantCode(t, err, sandbox.CodeConflict)
	w.pause("x")
	_, err = w.Update(ctx, "x", sandbox.UpdateRequest{Env: both})
	wantCode(t, err, sandbox.CodeInvalid)
	w.create(sandbox.CreateRequest{Name: "y", Env: both})
	_, err = w.AttachSecret(ctx, "y", "a", "A")
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.DetachSecret(ctx, "y", "A")
	wantCode(t, err, sandbox.CodeNotFound)
	for _, env := range []string{"", "a b", "1A", "A=B", "é", "A\x00"} {
		_, err = w.AttachSecret(ctx, "y", "a", env)
		wantCode(t, err, sandbox.CodeInvalid)
		_, err = w.Create(ctx, sandbox.CreateRequest{Secrets: map[string]string{env: "a"}})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, err = w.Create(ctx, sandbox.CreateRequest{Secrets: map[string]string{"A": "none"}})
	wantCode(t, err, sandbox.CodeNotFound)
	many := map[string]string{}
	for i := range sandbox.MaxSecretsPerSandbox {
		many[fmt.Sprint("E", i)] = "a"
	}
	w.create(sandbox.CreateRequest{Name: "full", Secrets: many})
	_, err = w.AttachSecret(ctx, "full", "a", "ONE_MORE")
	wantCode(t, err, sandbox.CodeInvalid)
	if got := len(w.get("full").Secrets); got != sandbox.MaxSecretsPerSandbox {
		t.Errorf("it has %d secrets", got)
	}
	w.agree()
}

// TestSecretsOfOthers calls each verb with a secret of another team, by id and
// by name, and compares with one that does not exist.
func TestSecretsOfOthers(t *testing.T) {
	w := newHarness(t)
	theirs := w.secret("treasure", "v")
	blue := as(t.Context(), "blue")
	own, err := w.Create(blue, sandbox.CreateRequest{})
	must(t, err)
	absent := ids.Secret + strings.Repeat("a", len(theirs.ID)-len(ids.Secret))
	for verb, call := range map[string]func(ref string) error{
		"GetSecret": func(ref string) error { _, err := w.GetSecret(blue, ref); return err },
		"RotateSecret": func(ref string) error {
			_, err := w.RotateSecret(blue, ref, sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("mine")})
			return err
		},
		"DeleteSecret": func(ref string) error { return w.DeleteSecret(blue, ref) },
		"AttachSecret": func(ref string) error { _, err := w.AttachSecret(blue, own.ID, ref, "A"); return err },
		"Create": func(ref string) error {
			_, err := w.Create(blue, sandbox.CreateRequest{Secrets: map[string]string{"A": ref}})
			return err
		},
	} {
		for ref, none := range map[string]string{theirs.ID: absent, "treasure": "no-such-name"} {
			unknown := call(none)
			wantCode(t, unknown, sandbox.CodeNotFound)
			err := call(ref)
			wantCode(t, err, sandbox.CodeNotFound)
			if got, want := strings.ReplaceAll(err.Error(), ref, none), unknown.Error(); got != want {
				t.Errorf("%s: a foreign secret gives %q, one that does not exist %q", verb, got, want)
			}
		}
	}
	list, err := w.ListSecrets(blue, sandbox.Page{})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("another team sees %v", list.Items)
	}
	if got, err := w.GetSecret(asRed(t), "treasure"); err != nil || got.Version != 1 {
		t.Errorf("the secret is %+v, %v", got, err)
	}
	// Any scope is enough to read; a key without scopes may not.
	reader := as(t.Context(), "red", sandbox.ScopeFilesWrite)
	if list, err = w.ListSecrets(reader, sandbox.Page{}); err != nil || len(list.Items) != 1 {
		t.Errorf("a reader sees %v, %v", list, err)
	}
	_, err = w.ListProviders(reader)
	must(t, err)
	_, err = w.ListSecrets(sandbox.WithCaller(t.Context(), sandbox.Caller{KeyID: "k", Team: "red"}), sandbox.Page{})
	wantCode(t, err, sandbox.CodeForbidden)
	_, err = w.ListSecrets(t.Context(), sandbox.Page{})
	wantCode(t, err, sandbox.CodeUnauthenticated)
}

// TestValuesStayInside looks for values in everything that the service returns, logs
// and stores.
func TestValuesStayInside(t *testing.T) {
	const first, second = "c4n4ry-first-value", "c4n4ry-second-value"
	var logs bytes.Buffer
	t.Cleanup(func() { // when the service has ended
		if logs.Len() == 0 {
			t.Error("nothing is logged")
		}
		for _, secret := range []string{first, second} {
			if bytes.Contains(logs.Bytes(), []byte(secret)) {
				t.Errorf("the log tells the value: %s", &logs)
			}
		}
	})
	w := newHarness(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	ctx := asRed(t)
	var said []any
	note := func(v any, err error) { said = append(said, v, fmt.Sprint(err), fmt.Sprintf("%+v %#v", v, err)) }
	req := sandbox.CreateSecretRequest{Name: "a", Value: sandbox.NewSecretValue(first), Hosts: []string{"api.example.com"}}
	note(w.CreateSecret(ctx, req))
	note(w.CreateSecret(ctx, req)) // a conflict
	note(req, nil)
	for _, bad := range []sandbox.CreateSecretRequest{
		{Name: "b", Value: sandbox.NewSecretValue(first + "\n"), Hosts: req.Hosts}, {Name: "b c", Value: req.Value, Hosts: req.Hosts},
		{Name: "b", Value: req.Value}, {Name: "b", Value: req.Value, Provider: "none"},
		{Name: "b", Value: sandbox.NewSecretValue(strings.Repeat(first, sandbox.MaxSecretBytes)), Hosts: req.Hosts},
	} {
		_, err := w.CreateSecret(ctx, bad)
		wantCode(t, err, map[bool]sandbox.Code{false: sandbox.CodeInvalid, true: sandbox.CodeOf(err)}[sandbox.CodeOf(err) == sandbox.CodeTooLarge])
		note(bad, err)
	}
	note(w.Create(ctx, sandbox.CreateRequest{Name: "x", Secrets: map[string]string{"A": "a"}}))
	w.state.Fail(memory.StepSetNetwork, memory.After, fmt.Errorf("lost"))
	note(w.RotateSecret(ctx, "a", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue(second)}))
	w.wantTold("rotate", "x", values{"A": second})
	note(w.Fork(ctx, "x", sandbox.ForkRequest{}))
	note(w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{Name: "s"}))
	note(w.GetSecret(ctx, "a"))
	note(w.ListSecrets(ctx, sandbox.Page{}))
	note(w.GetEnv(ctx, "x", sandbox.Page{}))
	note(w.Get(ctx, "x"))
	note(w.Exec(ctx, "x", sandbox.ExecRequest{Shell: "env; cat /proc/self/environ"}, nil))
	note(w.output("x", sandbox.ExecRequest{Shell: "env; cat /proc/self/environ"}), nil)
	note(w.Audit(ctx, sandbox.AuditRequest{}))
	w.restart()
	note(w.DeleteSecret(ctx, "a"), nil)
	note(w.Kill(ctx, "x"))
	note(w.Audit(ctx, sandbox.AuditRequest{}))
	for i, v := range said {
		data, err := json.Marshal(v)
		must(t, err)
		for _, secret := range []string{first, second} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("answer %d tells the value: %s", i, data)
			}
		}
	}
	files := 0
	must(t, filepath.WalkDir(filepath.Dir(w.path), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, secret := range []string{first, second} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds the value", path)
			}
		}
		return nil
	}))
	if files < 2 {
		t.Errorf("only %d files were searched", files)
	}
	events, err := w.Audit(ctx, sandbox.AuditRequest{})
	must(t, err)
	var actions []string
	for _, e := range events.Items {
		actions = append(actions, e.Action)
	}
	for _, want := range []string{"secret.create", "secret.rotate", "secret.delete"} {
		if !slices.Contains(actions, want) {
			t.Errorf("the audit record has no %s: %v", want, actions)
		}
	}
}

// A lost key file is replaced by a new one. At the start, the log says which secrets
// were lost with it, before one is used.
func TestLostKeyIsTold(t *testing.T) {
	var log bytes.Buffer
	w := newHarness(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	w.secret("anthropic", "value")
	w.restart()
	w.stop() // nobody writes to the log meanwhile
	if strings.Contains(log.String(), "key is lost") {
		t.Errorf("with its key: %s", log.String())
	}
	fresh, err := vault.Load(t.TempDir(), "")
	must(t, err)
	w.cfg.Vault = fresh
	w.start()
	w.stop()
	defer w.start()
	if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "their key is lost") || !strings.Contains(got, "red/anthropic") || !strings.Contains(got, vault.KeyFile) {
		t.Errorf("without its key: %s", got)
	}
}

// TestRotateSecretsKey makes a new key while secrets are made and changed, and
// with a webhook that waits for a job.
func TestRotateSecretsKey(t *testing.T) {
	w, r := hooked(t), newReceiver(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.secret("s", "value")
	w.hook(sbx.ID, "while ! [ -e go ]; do sleep 0.02; done", sandbox.Webhook{URL: r.URL, Secret: sandbox.NewSecretValue("0123456789")})
	rows := func() (all [][]byte) {
		secrets, _, err := w.store.ListSecrets(t.Context(), "", sandbox.Page{Limit: sandbox.MaxPageSize})
		must(t, err)
		for _, s := range secrets {
			all = append(all, s.Sealed)
		}
		hooks, _, err := w.store.ListDeliveries(t.Context(), store.DeliveryFilter{Open: true}, sandbox.Page{})
		must(t, err)
		for _, d := range hooks {
			all = append(all, d.Sealed)
		}
		return all
	}
	before := rows()
	stale, _, err := w.store.ListDeliveries(t.Context(), store.DeliveryFilter{Open: true}, sandbox.Page{})
	must(t, err)
	// A sandbox is being created meanwhile, and has already read the old value.
	w.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error {
		_, err := w.RotateSecretsKey(asRed(t))
		return err
	})
	meanwhile := w.create(sandbox.CreateRequest{Secrets: map[string]string{"S": "s"}})
	w.wantTold("created during a rotation", meanwhile.ID, values{"S": "value"})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("s%d-%d", i, n%5)
				if n < 5 {
					w.secret(name, "first")
				} else if _, err := w.RotateSecret(asRed(t), name, sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("next")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		done, err := w.RotateSecretsKey(asRed(t))
		if err != nil || done.Values < 1 || len(done.Lost) > 0 {
			t.Errorf("%+v, %v", done, err)
		}
	}
	close(stop)
	wg.Wait()
	// Values that were sealed with the deleted key no longer open.
	for _, sealed := range rows() {
		if !w.cfg.Vault.Current(sealed) {
			t.Error("something is sealed with a key that is not there")
		}
	}
	for _, sealed := range before {
		if w.cfg.Vault.Current(sealed) {
			t.Error("the key is the same as before")
		}
	}
	// A delivery that was read before the rotation still opens.
	if hook, opened, err := w.webhooks.Unseal(t.Context(), &stale[0]); err != nil || !opened || hook.Secret != "0123456789" {
		t.Errorf("a webhook that was read before is opened as %q, %v", hook.Secret, err)
	}
	w.restart()
	_, err = w.AttachSecret(asRed(t), sbx.ID, "s", "S")
	must(t, err)
	w.wantTold("after the rotation", sbx.ID, values{"S": "value"})
	w.shell(sbx.ID, "touch go")
	w.delivered(sbx.ID, store.DeliveryDelivered)
	if r.header[0].Get("Webhook-Signature") == "" {
		t.Error("the webhook has lost its secret")
	}
}
