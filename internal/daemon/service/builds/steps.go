package builds

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxLayerBytes bounds the content of the files that one step has changed.
	maxLayerBytes = 32 << 30
	// stepOutput is how much of a step's output the sandbox itself keeps, in bytes.
	stepOutput = 64 << 10
	// stepWords (bytes) and stepLines bound the last output that an error quotes.
	stepWords = 2 << 10
	stepLines = 10
	// stepRoot is the user who runs steps, root. It is a number because images without
	// accounts have no name for it.
	stepRoot = "0"
)

// buildStep is one step of a build. Each runs in a sandbox of its own, so it makes no
// difference whether the steps before it ran or were kept from an earlier build.
type buildStep struct {
	title string
	// installs is the installer, if the step installs packages.
	installs string
	// key is everything that the result depends on, besides the root.
	key     any
	run     func(ctx context.Context, m *buildMachine) error
	network sandbox.NetworkPolicy
	// copy, set instead of run and key, needs no sandbox.
	copy *sandbox.TemplateCopy
	// from and to are where in the whole build the step begins and ends, from 0 to 1.
	from, to float64
}

const (
	// baseShare and stepsShare are the shares of the base and of the steps in a build's
	// progress.
	baseShare, stepsShare = 0.3, 0.6
	// aptWeight is how many other steps an installation by apt counts for.
	aptWeight = 5
)

// stepShares returns where in the whole build each step begins, and where the last
// ends.
func stepShares(steps []buildStep) []float64 {
	weights, all := make([]float64, len(steps)), 0.0
	for i, step := range steps {
		if weights[i] = 1; step.installs == "apt" {
			weights[i] = aptWeight
		}
		all += weights[i]
	}
	shares := []float64{baseShare}
	for _, w := range weights {
		shares = append(shares, shares[len(shares)-1]+stepsShare*w/all)
	}
	return shares
}

// build makes a template as planned. If it fails, nothing is left.
func (x *Builder) build(ctx context.Context, b *building) (*sandbox.Template, error) {
	spec := &b.plan.Spec
	base, err := x.buildBase(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := x.growBuild(ctx, b, base); err != nil {
		return nil, err
	}
	steps := x.buildSteps(spec, base)
	shares := stepShares(steps)
	for i := range steps {
		step := &steps[i]
		title := fmt.Sprintf("%d/%d %s", i+1, len(steps), step.title)
		fraction := shares[i]
		step.from, step.to = shares[i], shares[i+1]
		if step.copy != nil {
			if base, err = x.copyStep(ctx, b, base, step, title, fraction); err != nil {
				return nil, stepError(err, i+1, len(steps), step.title)
			}
			continue
		}
		key := image.ChainKey(base.Root, step.key)
		if !b.plan.Anew {
			if kept := x.cfg.Templates.Extended(base, key); kept != nil {
				base = kept
				b.report(title, fraction, "kept from an earlier build\n")
				continue
			}
		}
		b.report(title, fraction, "")
		if base, err = x.runStep(ctx, b, base, step, key); err != nil {
			return nil, stepError(err, i+1, len(steps), step.title)
		}
	}
	if err := x.tryStart(ctx, b, base); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.report("keep the template", 0.93, "")
	t, err := x.cfg.Templates.Publish(b.plan.Name, spec, base)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// copyStep adds files of an upload to a base.
func (x *Builder) copyStep(ctx context.Context, b *building, base *image.Foundation, step *buildStep, title string, fraction float64) (*image.Foundation, error) {
	b.report(title, fraction, "")
	keeper, err := x.archives()
	if err != nil {
		return nil, err
	}
	next, kept, err := keeper.Copy(ctx, base, step.copy, b.plan.Anew)
	if err == nil && kept {
		b.report(title, fraction, "kept from an earlier build\n")
	}
	return next, err
}

// buildBase makes the root that the steps begin with.
func (x *Builder) buildBase(ctx context.Context, b *building) (*image.Foundation, error) {
	b.report("begin", 0, "")
	if b.from != nil {
		return x.snapshotBase(ctx, b)
	}
	share := baseShare
	if spec := &b.plan.Spec; len(spec.Apt)+len(spec.Pip)+len(spec.NPM)+len(spec.Files)+len(spec.Run) == 0 {
		share = baseShare + stepsShare
	}
	defer func() { b.plan.Login = nil }() // it is no longer needed
	return x.cfg.Templates.Base(ctx, b.plan, func(step string, fraction float64, log string) {
		if log != "" && !strings.HasSuffix(log, "\n") {
			log += "\n"
		}
		b.report(step, fraction*share, log)
	})
}

// snapshotBase makes a root from the files of a snapshot.
func (x *Builder) snapshotBase(ctx context.Context, b *building) (*image.Foundation, error) {
	snap := b.from
	root, err := startup.RootOf(snap.Root)
	if err != nil {
		return nil, err
	}
	t := sandbox.Template{User: snap.User, WorkDir: snap.WorkDir, Env: map[string]string{}, Resources: snap.Resources}
	maps.Copy(t.Env, snap.BaseEnv)
	maps.Copy(t.Env, snap.Env)
	if begins := startup.Recorded(snap.Root); begins != nil {
		t.Start, t.Desktop = begins.Start, begins.Desktop
	}
	b.report("files of the snapshot", 0.05, "")
	base := &image.Foundation{Root: root, Template: t}
	key := image.ChainKey(root, []string{"snapshot", snap.ID})
	if kept := x.cfg.Templates.Extended(base, key); kept != nil && !b.plan.Anew {
		return kept, nil
	}
	opts := layer.ImageOptions{Bound: boundPaths(root), Trust: len(snap.Bindings) > 0, MaxBytes: maxLayerBytes}
	return x.cfg.Templates.Extend(ctx, base, key, x.changesOf(engine.Source{Checkpoint: snap.Checkpoint}, opts))
}

// boundPaths returns the paths of a root that are mounted from the host.
func boundPaths(root engine.Root) []string {
	paths := make([]string, len(root.Binds))
	for i, b := range root.Binds {
		paths[i] = b.Target
	}
	return paths
}

// changesOf returns a function that opens the changes of an instance or a checkpoint as
// a layer.
func (x *Builder) changesOf(of engine.Source, opts layer.ImageOptions) func(context.Context) (io.ReadCloser, error) {
	return func(ctx context.Context) (io.ReadCloser, error) {
		changes, err := x.cfg.Keeper.Changes(ctx, of)
		if err != nil {
			return nil, err
		}
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := layer.WriteImage(ctx, w, changes, opts)
			_ = changes.Close()
			_ = w.CloseWithError(err)
		}()
		return &pipedLayer{PipeReader: r, done: done}, nil
	}
}

// pipedLayer is a layer that is being written by a goroutine.
type pipedLayer struct {
	*io.PipeReader
	done chan struct{}
}

// Close ends the writer and waits for it.
func (p *pipedLayer) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// stepError adds to an error in which step it happened.
func stepError(err error, n, of int, title string) error {
	switch code := sandbox.CodeOf(err); code {
	case sandbox.CodeInternal, sandbox.CodeCancelled:
		return fmt.Errorf("step %d of %d: %w", n, of, err)
	default:
		return sandbox.Wrap(code, err, fmt.Sprintf("step %d of %d (%s): %s", n, of, title, sandbox.MessageOf(err)))
	}
}

// buildMachine is the sandbox in which a step runs. It has no record: listings do not
// show it, and the next start removes what a crash leaves of it.
type buildMachine struct {
	b      *building
	id     string
	client *agentclient.Client
	// env and workDir are those of the steps after the packages.
	env     map[string]string
	workDir string
	// from and to are where in the whole build its step begins and ends, from 0 to 1.
	from, to float64
}

// report reports how far the step is, from 0 to 1, and its new output.
func (m *buildMachine) report(fraction float64, log string) {
	m.b.report("", m.from+(m.to-m.from)*fraction, log)
}

// runStep runs a step and makes a root with its changes.
func (x *Builder) runStep(ctx context.Context, b *building, base *image.Foundation, step *buildStep, key string) (*image.Foundation, error) {
	var next *image.Foundation
	err := x.inMachine(ctx, b, base, step.network, func(m *buildMachine) error {
		m.from, m.to = step.from, step.to
		if err := step.run(ctx, m); err != nil {
			return x.advise(ctx, m, step.installs, "build_network", err)
		}
		var err error
		opts := layer.ImageOptions{Bound: boundPaths(base.Root), MaxBytes: maxLayerBytes}
		next, err = x.cfg.Templates.Extend(ctx, base, key, x.changesOf(engine.Source{Instance: m.id}, opts))
		return err
	})
	return next, err
}

// inMachine calls f with a new sandbox of a root, and removes the sandbox afterwards.
func (x *Builder) inMachine(ctx context.Context, b *building, base *image.Foundation, network sandbox.NetworkPolicy, f func(*buildMachine) error) (err error) {
	id := ids.New(ids.Sandbox)
	env := stepEnv(&b.plan.Spec, base)
	x.noteMachine(id, true)
	defer func() {
		defer x.noteMachine(id, false)
		clean, cancel := call.Teardown(ctx)
		defer cancel()
		if derr := x.cfg.Engine.Destroy(clean, id); derr != nil {
			// The next start finds the sandbox without a record and removes it.
			x.cfg.Log.Error("remove the sandbox of a build", "instance", id, "error", derr)
		}
		if x.cfg.NetworkLog != nil {
			if lerr := x.cfg.NetworkLog.RemoveNetworkLog(clean, id); lerr != nil {
				x.cfg.Log.Warn("remove the network log of a build", "instance", id, "error", lerr)
			}
		}
	}()
	release, err := x.cfg.Slot(ctx)
	if err != nil {
		return err
	}
	instance, err := x.cfg.Engine.Create(ctx, engine.Spec{
		ID: id, Root: base.Root, Resources: x.buildResources(&b.plan.Spec, &base.Template), Hostname: "build", User: stepRoot,
		WorkDir: cmp.Or(base.Template.WorkDir, "/"),
		Env:     maps.Clone(base.Template.Env), Network: &engine.Network{SandboxID: id, Policy: network},
	})
	release()
	if err != nil {
		return err
	}
	client := agentclient.New(id, instance.Dial)
	defer client.Close()
	return f(&buildMachine{b: b, id: id, client: client, env: env, workDir: cmp.Or(b.plan.Spec.WorkDir, base.Template.WorkDir)})
}

// stepEnv returns the environment of the steps after the packages.
func stepEnv(spec *sandbox.TemplateSpec, base *image.Foundation) map[string]string {
	env := map[string]string{}
	maps.Copy(env, base.Template.Env)
	maps.Copy(env, spec.Env)
	return env
}

// tryStart checks that the template's start command is ready in time, before anybody
// has a sandbox that waits for it.
func (x *Builder) tryStart(ctx context.Context, b *building, base *image.Foundation) error {
	spec := &b.plan.Spec
	if spec.Start == nil {
		return nil
	}
	t := sandbox.Template{
		User: cmp.Or(spec.User, base.Template.User), WorkDir: cmp.Or(spec.WorkDir, base.Template.WorkDir), Env: stepEnv(spec, base),
		Start: spec.Start, Desktop: cmp.Or(spec.Desktop, base.Template.Desktop),
	}
	b.report("try the start command", 0.9, "")
	policy := sandbox.NetworkPolicy{Preset: x.cfg.Network}
	if n := cmp.Or(spec.Network, base.Template.Network); n != nil {
		policy = *n
	}
	return x.inMachine(ctx, b, base, policy, func(m *buildMachine) error {
		return x.advise(ctx, m, "", "network", startup.Of(&t).Run(ctx, m.client))
	})
}

// exec runs a command of a step and streams its output to the log.
func (m *buildMachine) exec(ctx context.Context, req sandbox.ExecRequest) error {
	return m.execTold(ctx, req, func(text string) { m.b.report("", -1, text) })
}

// execTold is exec with a function that gets the output.
func (m *buildMachine) execTold(ctx context.Context, req sandbox.ExecRequest, report func(text string)) error {
	var tail lastOutput
	tell := func(text string) {
		if text != "" {
			tail.write(text)
			report(text)
		}
	}
	streams := map[sandbox.Stream]*clip.Stream{sandbox.Stdout: {}, sandbox.Stderr: {}}
	req.KeepBytes = stepOutput
	// Only the build's own time bounds it.
	job, err := m.client.Exec(ctx, "", &req, func(e sandbox.JobEvent) error {
		if s := streams[e.Stream]; s != nil {
			tell(s.Write(e.Offset, e.Data))
		}
		return nil
	})
	tell(streams[sandbox.Stdout].End())
	tell(streams[sandbox.Stderr].End())
	switch {
	case err != nil:
		return err
	case job.ExitCode != 0 && job.ExitCode > 128 && job.ExitCode <= 128+64:
		return sandbox.Errorf(sandbox.CodeInvalid, "it failed with exit code %d (signal %d)%s", job.ExitCode, job.ExitCode-128, tail.text())
	case job.ExitCode != 0:
		return sandbox.Errorf(sandbox.CodeInvalid, "it failed with exit code %d%s", job.ExitCode, tail.text())
	}
	return nil
}

// lastOutput keeps the end of a command's output.
type lastOutput struct{ data []byte }

func (l *lastOutput) write(text string) {
	l.data = append(l.data, text...)
	if over := len(l.data) - stepWords; over > 0 {
		l.data = append(l.data[:0], l.data[over:]...)
	}
}

// text returns the output as the continuation of an error message.
func (l *lastOutput) text() string {
	lines := bytes.Split(bytes.TrimSpace(l.data), []byte("\n"))
	lines = lines[max(0, len(lines)-stepLines):]
	out := clip.TailText(bytes.TrimSpace(bytes.Join(lines, []byte("\n"))))
	if out == "" {
		return " and no output"
	}
	return "; its last output:\n" + out
}

// shell returns the command that runs one of this package's scripts, with arguments as
// $1 and so on.
func shell(script string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// putFile writes a file of a spec. Missing directories are made, readable for everyone.
func (m *buildMachine) putFile(ctx context.Context, f *sandbox.TemplateFile) error {
	mode, err := validate.Mode(cmp.Or(f.Mode, "0644"))
	if err != nil {
		return err
	}
	req := &sandbox.WriteFileRequest{Path: f.Path, MakeParents: true, Owner: cmp.Or(f.Owner, stepRoot)}
	if _, err := m.client.WriteFile(ctx, req, mode, bytes.NewReader(f.Content)); err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	m.b.report("", -1, f.Path+"\n")
	return nil
}

// titled returns the title of a step, of bounded length and on one line.
func titled(kind string, words []string) string {
	text := strings.Join(strings.Fields(strings.Join(words, ", ")), " ")
	if r := []rune(text); len(r) > 60 {
		text = string(r[:60]) + "…"
	}
	return kind + ": " + text
}
