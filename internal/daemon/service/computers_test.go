package service

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// computerHarness has templates with start commands: one is ready when it has written a
// file, one fails, and one is not ready in time.
func computerHarness(t *testing.T) *harness {
	w := newHarness(t)
	put := func(name, start, ready string, desktop *sandbox.Desktop) {
		w.templates.Put(sandbox.Template{
			Name: name, Source: "debian", State: sandbox.TemplateReady, Digest: "sha256:" + name, Desktop: desktop, Env: map[string]string{"OF": "the template"},
			Start: &sandbox.StartCommand{Command: start, Ready: ready, TimeoutMS: 60_000},
		})
	}
	put("screen", `echo "started by $0 with $OF" > started; echo one more time >> count; exec sleep 1000`, "test -e started", &sandbox.Desktop{Width: 640, Height: 480, Display: ":9"})
	put("broken", "echo no such device >&2; exit 3", "test -e never", nil)
	w.templates.Put(sandbox.Template{
		Name: "slow", Source: "debian", State: sandbox.TemplateReady, Digest: "sha256:slow",
		Start: &sandbox.StartCommand{Command: "exec sleep 1000", Ready: "false", TimeoutMS: 300},
	})
	return w
}

func TestStart(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	sbx := w.create(sandbox.CreateRequest{Template: "screen", Env: map[string]string{"OF": "the caller"}})
	if got := w.shell(sbx.ID, "cat started; wc -l < count"); got != "started by /bin/sh with the template\n1" {
		t.Errorf("the start command wrote %q", got)
	}
	if sbx.Desktop == nil || sbx.Desktop.Width != 640 || w.get(sbx.ID).Desktop == nil {
		t.Errorf("the computer's desktop is %+v", sbx.Desktop)
	}
	job, err := w.GetJob(asRed(t), sbx.ID, startup.JobID)
	must(t, err)
	if job.State != sandbox.JobRunning || !strings.Contains(strings.Join(job.Command, " "), "sleep 1000") {
		t.Errorf("its job is %+v", job)
	}
	// In a fork the start command is running, and the fork is a computer too. A sandbox
	// made from the files alone runs it again.
	child := w.fork(sbx.ID, sandbox.ForkRequest{Count: 1})[0]
	if child.Desktop == nil {
		t.Error("a fork of a computer is none")
	}
	w.pause(sbx.ID)
	_, err = w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{FilesOnly: true})
	must(t, err)
	if got := w.shell(sbx.ID, "wc -l < count"); got != "2" {
		t.Errorf("after a boot with the files it was started %s times, want 2", got)
	}
	// If files break the start command, they can still be repaired in the sandbox.
	w.shell(sbx.ID, "rm started; mkdir started count.d; rm count; mkdir count")
	w.pause(sbx.ID)
	_, err = w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{FilesOnly: true})
	must(t, err)
	if got := w.get(sbx.ID).State; got != sandbox.StateRunning {
		t.Errorf("it is %s", got)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	for name, want := range map[string]struct {
		code sandbox.Code
		text string
	}{
		"broken": {sandbox.CodeConflict, `exited with code 3 before it was ready: "no such device"`},
		"slow":   {sandbox.CodeTimeout, "was not ready within 300ms"},
	} {
		_, err := w.Create(asRed(t), sandbox.CreateRequest{Template: name})
		wantCode(t, err, want.code)
		if !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %q does not say %q", name, err, want.text)
		}
	}
	left, err := w.engine.List(t.Context())
	must(t, err)
	if len(left) > 0 {
		t.Errorf("failed starts have left %+v", left)
	}
	list, err := w.List(asRed(t), sandbox.ListRequest{States: []sandbox.State{sandbox.StateRunning, sandbox.StateCreating}})
	must(t, err)
	if len(list.Items) > 0 {
		t.Errorf("sandboxes whose start failed live: %+v", list.Items)
	}
}

// A computer that nobody uses is idle, although its screen runs.
func TestStartIsNoUse(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	minute := int64(60)
	sbx := w.create(sandbox.CreateRequest{Template: "screen", IdleTimeoutSeconds: &minute})
	w.ago(sbx.ID, time.Hour)
	must(t, w.Expire(t.Context(), sbx.ID))
	if got := w.get(sbx.ID); got.State != sandbox.StateKilled {
		t.Errorf("an idle computer is %s", got.State)
	}
}

func TestGoldenStarts(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	w.templates.Put(sandbox.Template{
		Name: "screen", Source: "debian", State: sandbox.TemplateReady, Digest: "sha256:screen", Desktop: &sandbox.Desktop{Width: 640, Height: 480, Display: ":9"},
		Start: &sandbox.StartCommand{Command: "echo once >> count; exec sleep 1000", Ready: "test -e count"},
	})
	must(t, w.prepare(t.Context(), "screen", "red"))
	sbx := w.create(sandbox.CreateRequest{Template: "screen"})
	if got := w.shell(sbx.ID, "cat count"); got != "once" {
		t.Errorf("a computer that goes on from the golden checkpoint has %q", got)
	}
}

func TestNotAComputer(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.pause(sbx.ID)
	for verb, call := range map[string]func() error{
		"Screenshot":   func() error { return onSandbox["Screenshot"](asRed(t), w, sbx.ID) },
		"SendInput":    func() error { return onSandbox["SendInput"](asRed(t), w, sbx.ID) },
		"ViewComputer": func() error { return onSandbox["ViewComputer"](asRed(t), w, sbx.ID) },
	} {
		err := call()
		wantCode(t, err, sandbox.CodeUnsupported)
		if !strings.Contains(err.Error(), "from the template screen") {
			t.Errorf("%s does not say which template has a screen: %v", verb, err)
		}
	}
	if got := w.get(sbx.ID).State; got != sandbox.StatePaused {
		t.Errorf("being asked for its screen made it %s", got)
	}
	_, err := w.Create(asRed(t), sandbox.CreateRequest{Template: "windows-11"})
	wantCode(t, err, sandbox.CodeUnsupported)
}

func TestComputerBounds(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	sbx := w.create(sandbox.CreateRequest{Template: "screen"})
	ctx := asRed(t)
	shot := func(r sandbox.ScreenshotRequest) error { _, err := w.Screenshot(ctx, sbx.ID, r); return err }
	input := func(in ...sandbox.Input) error { _, err := w.SendInput(ctx, sbx.ID, in); return err }
	window := func(r sandbox.WindowRequest) error { _, err := w.ControlWindow(ctx, sbx.ID, r); return err }
	view := func(seconds int64) error {
		_, err := w.ViewComputer(ctx, sbx.ID, sandbox.ViewRequest{TTLSeconds: seconds})
		return err
	}
	for name, test := range map[string]struct {
		err  error
		code sandbox.Code
	}{
		"region of nothing":   {shot(sandbox.ScreenshotRequest{Region: &sandbox.Region{}}), sandbox.CodeInvalid},
		"negative region":     {shot(sandbox.ScreenshotRequest{Region: &sandbox.Region{X: -1, Width: 1, Height: 1}}), sandbox.CodeInvalid},
		"wide":                {shot(sandbox.ScreenshotRequest{Width: sandbox.MaxScreenWidth + 1}), sandbox.CodeInvalid},
		"long wait":           {shot(sandbox.ScreenshotRequest{StableMS: sandbox.MaxStableWait.Milliseconds() + 1}), sandbox.CodeInvalid},
		"format":              {shot(sandbox.ScreenshotRequest{Format: "gif"}), sandbox.CodeInvalid},
		"quality of PNG":      {shot(sandbox.ScreenshotRequest{Quality: 50}), sandbox.CodeInvalid},
		"no inputs":           {input(), sandbox.CodeInvalid},
		"too many inputs":     {input(make([]sandbox.Input, sandbox.MaxInputs+1)...), sandbox.CodeInvalid},
		"long text":           {input(sandbox.Input{Type: sandbox.InputText, Text: strings.Repeat("x", sandbox.MaxTypedBytes+1)}), sandbox.CodeTooLarge},
		"no text":             {input(sandbox.Input{Type: sandbox.InputText, Text: "\xff"}), sandbox.CodeInvalid},
		"long path":           {input(sandbox.Input{Type: sandbox.InputDrag, Path: make([]sandbox.Point, sandbox.MaxDragPoints+1)}), sandbox.CodeInvalid},
		"many keys":           {input(sandbox.Input{Type: sandbox.InputKey, Keys: make([]string, sandbox.MaxInputKeys+1)}), sandbox.CodeInvalid},
		"long clipboard":      {w.SetClipboard(ctx, sbx.ID, strings.Repeat("x", sandbox.MaxClipboard+1)), sandbox.CodeTooLarge},
		"window action":       {window(sandbox.WindowRequest{ID: 1, Action: "shred"}), sandbox.CodeInvalid},
		"window nowhere":      {window(sandbox.WindowRequest{ID: 1, Action: sandbox.WindowPlace}), sandbox.CodeInvalid},
		"region to close":     {window(sandbox.WindowRequest{ID: 1, Action: sandbox.WindowClose, Region: &sandbox.Region{Width: 1, Height: 1}}), sandbox.CodeInvalid},
		"no window":           {window(sandbox.WindowRequest{ID: 1 << 32, Action: sandbox.WindowClose}), sandbox.CodeNotFound},
		"option as address":   {w.OpenURL(ctx, sbx.ID, "--no-sandbox"), sandbox.CodeInvalid},
		"script as address":   {w.OpenURL(ctx, sbx.ID, "javascript:alert(1)"), sandbox.CodeInvalid},
		"address of nowhere":  {w.OpenURL(ctx, sbx.ID, "https:///x"), sandbox.CodeInvalid},
		"long address":        {w.OpenURL(ctx, sbx.ID, "http://x/"+strings.Repeat("y", maxAddress)), sandbox.CodeTooLarge},
		"view for ever":       {view(int64(sandbox.MaxPreviewLink/time.Second) + 1), sandbox.CodeInvalid},
		"view in the past":    {view(-1), sandbox.CodeInvalid},
		"a screen that is no": {shot(sandbox.ScreenshotRequest{}), sandbox.CodeUnavailable},
		"a click on none":     {input(sandbox.Input{Type: sandbox.InputClick}), sandbox.CodeUnavailable},
	} {
		if got := sandbox.CodeOf(test.err); got != test.code {
			t.Errorf("%s: %v has the code %q, want %q", name, test.err, got, test.code)
		}
	}
	// Actions that failed are not reported.
	if got := w.remembered(ctx, sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventComputer}}); len(got) != 1 {
		t.Errorf("after refused actions is told %q", got)
	}
}

func TestViewLinks(t *testing.T) {
	t.Parallel() // mostly waits for a screen that is not there
	w := computerHarness(t)
	sbx := w.create(sandbox.CreateRequest{Template: "screen", Name: "pc"})
	other := w.create(sandbox.CreateRequest{Template: "screen"})
	link := func(control bool) string {
		t.Helper()
		l, err := w.ViewComputer(asRed(t), "pc", sandbox.ViewRequest{Control: control})
		must(t, err)
		u, err := url.Parse(l.URL)
		must(t, err)
		if u.Host != sandbox.ViewLabel+sbx.ID+".localhost" || time.Until(l.ExpiresAt) > sandbox.DefaultPreviewLink {
			t.Errorf("the link is %+v", l)
		}
		return u.Query().Get(sandbox.ViewLinkParam)
	}
	watch, control := link(false), link(true)
	for _, test := range []struct {
		id, link string
		control  bool
	}{{sbx.ID, watch, false}, {sbx.ID, control, true}} {
		v, err := w.VisitView(t.Context(), sandbox.ViewVisit{SandboxID: test.id, Link: test.link})
		must(t, err)
		if v.Control != test.control || v.Name != "pc" || v.SandboxID != sbx.ID {
			t.Errorf("%q opens %+v", test.link, v)
		}
	}
	later := strings.Split(watch, ".")
	later[2] = "99999999999"
	for name, visit := range map[string]sandbox.ViewVisit{
		"none":              {SandboxID: sbx.ID},
		"of another":        {SandboxID: other.ID, Link: watch},
		"with more rights":  {SandboxID: sbx.ID, Link: strings.Replace(watch, ".watch.", ".control.", 1)},
		"for longer":        {SandboxID: sbx.ID, Link: strings.Join(later, ".")},
		"expired":           {SandboxID: sbx.ID, Link: w.links().SignView(sbx.ID, true, time.Now().Add(-time.Second))},
		"of another kind":   {SandboxID: sbx.ID, Link: strings.Replace(watch, ".watch.", ".own.", 1)},
		"of what is not":    {SandboxID: ids.Sandbox + strings.Repeat("a", 26), Link: watch},
		"of no id":          {SandboxID: "../x", Link: watch},
		"a preview's":       {SandboxID: sbx.ID, Link: w.links().SignPreview(&store.PreviewRecord{Preview: sandbox.Preview{ID: sbx.ID}}, time.Now().Add(time.Hour))},
		"with a bad length": {SandboxID: sbx.ID, Link: watch + "."},
	} {
		if _, err := w.VisitView(t.Context(), visit); sandbox.CodeOf(err) != sandbox.CodeForbidden {
			t.Errorf("a link %s: %v", name, err)
		}
		if _, _, err := w.DialView(t.Context(), visit); sandbox.CodeOf(err) != sandbox.CodeForbidden {
			t.Errorf("a link %s: dialled: %v", name, err)
		}
	}
	// A watcher does not resume the computer, and learns that it is paused.
	w.pause(sbx.ID)
	v, err := w.VisitView(t.Context(), sandbox.ViewVisit{SandboxID: sbx.ID, Link: control})
	wantCode(t, err, sandbox.CodeNotRunning)
	if v == nil || !v.Control {
		t.Errorf("of a paused computer is told %+v", v)
	}
	if got := w.get(sbx.ID).State; got != sandbox.StatePaused {
		t.Errorf("a visit made it %s", got)
	}
	if !w.HasView(t.Context(), sbx.ID) || w.HasView(t.Context(), w.create(sandbox.CreateRequest{}).ID) || w.HasView(t.Context(), "x") {
		t.Error("what has a live view is told wrongly")
	}
	_, err = w.Kill(asRed(t), sbx.ID)
	must(t, err)
	_, err = w.VisitView(t.Context(), sandbox.ViewVisit{SandboxID: sbx.ID, Link: control})
	wantCode(t, err, sandbox.CodeNotFound)
}
