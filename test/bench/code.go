package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// answer is the code of most measurements: it does as little as possible.
var answer = sandbox.RunCodeRequest{Language: sandbox.Python, Code: "print(6*7)"}

func isAnswer(r *sandbox.CodeResult, err error) error {
	if err == nil && r.Stdout != "42\n" {
		err = fmt.Errorf("the code said %q, %v", r.Stdout+r.Stderr, r.Error)
	}
	return err
}

// code measures code in a running interpreter, in a new one, and in a sandbox of its own,
// and the throughput.
func (b *bench) code(ctx context.Context) error {
	err := b.withSandbox(ctx, func(id string) error {
		run := func(ctx context.Context) error { return isAnswer(b.d.Client.RunCode(ctx, id, answer, nil)) }
		if err := b.time(ctx, "print(6*7) in a warm kernel, Go client, unix socket", "< 4 ms", 10*b.n, figures.Whole(run)); err != nil {
			return err
		}
		if err := b.time(ctx, "run_code print(6*7), MCP HTTP", "< 8 ms", 10*b.n, b.mcpCode(ctx, id)); err != nil {
			return err
		}
		if err := b.flow(ctx, id); err != nil {
			return err
		}
		return b.many(ctx, id)
	})
	if err != nil {
		return err
	}
	if err := b.time(ctx, "first print(6*7) in a new sandbox, template host", "", b.n, b.firstRun("")); err != nil {
		return err
	}
	if err := b.time(ctx, "isolated print(6*7): create, run, gone; template host", "", b.n, b.isolated("")); err != nil {
		return err
	}
	return b.time(ctx, "python3 -c 'print(6*7)' on the host", "", b.n, figures.Whole(func(ctx context.Context) error {
		return exec.CommandContext(ctx, "python3", "-c", answer.Code).Run()
	}))
}

// firstRun measures the first code in a new sandbox.
func (b *bench) firstRun(template string) figures.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: template})
		if err != nil {
			return 0, err
		}
		began := time.Now()
		err = isAnswer(b.d.Client.RunCode(ctx, s.ID, answer, nil))
		took := time.Since(began)
		_, kerr := b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
		return took, errors.Join(err, kerr)
	}
}

// mcpCode returns a call of run_code over a session that stays open.
func (b *bench) mcpCode(ctx context.Context, id string) figures.Timed {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: b.d.URL + "/mcp"}, nil)
	return figures.Whole(func(ctx context.Context) error {
		if err != nil {
			return err
		}
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{"sandbox": id, "code": answer.Code}})
		if err == nil && res.IsError {
			err = errors.New("run_code has failed")
		}
		return err
	})
}

// flow measures the throughput of streamed output.
func (b *bench) flow(ctx context.Context, id string) error {
	const size = sandbox.MaxKeepBytes
	req := sandbox.RunCodeRequest{
		Language: sandbox.Python, KeepBytes: size,
		Code: fmt.Sprintf("import sys\nfor _ in range(%d): sys.stdout.write('x'*65535+'\\n')", size>>16),
	}
	return b.rate(ctx, "16 MiB of output as a stream", "", 5, size, figures.Whole(func(ctx context.Context) error {
		got := 0
		_, err := b.d.Client.RunCode(ctx, id, req, func(e sandbox.CodeEvent) error { got += len(e.Data); return nil })
		if err == nil && got != size {
			err = fmt.Errorf("%d bytes came, want %d", got, size)
		}
		return err
	}))
}

// many measures how many runs a second complete, over several contexts.
func (b *bench) many(ctx context.Context, id string) error {
	const length = 3 * time.Second
	workers := 2 * runtime.NumCPU()
	// The interpreters are started first.
	for i := range workers {
		if err := isAnswer(b.d.Client.RunCode(ctx, id, inContext(i), nil)); err != nil {
			return err
		}
	}
	var runs atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	end := time.Now().Add(length)
	for i := range workers {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := isAnswer(b.d.Client.RunCode(ctx, id, inContext(i), nil)); err != nil {
					failed <- err
					return
				}
				runs.Add(1)
			}
		})
	}
	wg.Wait()
	b.note(fmt.Sprintf("print(6*7) in %d contexts at once", workers), "1000 calls/s, bounded by cores", "%.0f calls/s", float64(runs.Load())/length.Seconds())
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func inContext(i int) sandbox.RunCodeRequest {
	req := answer
	req.Context = fmt.Sprintf("bench-%d", i)
	return req
}

// warmKernels measures a sandbox whose interpreter loaded the usual libraries before the
// sandbox was created, compared with a new interpreter in it.
func (b *bench) warmKernels(ctx context.Context) error {
	const name = "create, then import pandas done"
	t, err := b.d.Client.GetTemplate(ctx, "code-interpreter")
	if err != nil {
		return err
	}
	if t.State != sandbox.TemplateReady {
		b.note(name, "< 200 ms", "the template code-interpreter is not built; build it, and name its state directory with -state")
		return nil
	}
	once := func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: t.Name})
		if err != nil {
			return 0, err
		}
		r, err := b.d.Client.RunCode(ctx, s.ID, sandbox.RunCodeRequest{Language: sandbox.Python, Code: "import pandas"}, nil)
		took := time.Since(began)
		if err == nil && r.Error != nil {
			err = fmt.Errorf("import pandas: %s", r.Error.Message)
		}
		_, kerr := b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
		return took, errors.Join(err, kerr)
	}
	// The first creation makes the golden checkpoint.
	for end := time.Now().Add(2 * time.Minute); ; {
		if took, err := once(ctx); err != nil {
			return err
		} else if took < 400*time.Millisecond || time.Now().After(end) {
			break
		}
	}
	s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: t.Name})
	if err != nil {
		return err
	}
	err = b.time(ctx, "python3 -c 'import pandas' in a sandbox that runs", "", 3, figures.Whole(func(ctx context.Context) error {
		return b.sh(ctx, s.ID, "python3 -c 'import pandas'")
	}))
	if _, kerr := b.d.Client.Kill(context.WithoutCancel(ctx), s.ID); err != nil || kerr != nil {
		return errors.Join(err, kerr)
	}
	const here = "python3 -c 'import pandas' on this machine, without a sandbox"
	imports := func(ctx context.Context) error { return command(ctx, "python3", "-c", "import pandas") }
	if imports(ctx) != nil {
		b.note(here, "", "this machine's Python has no pandas")
	} else if err := b.time(ctx, here, "", 3, figures.Whole(imports)); err != nil {
		return err
	}
	if err := b.time(ctx, name, "< 200 ms", b.n, once); err != nil {
		return err
	}
	if err := b.time(ctx, "first print(6*7) in a new sandbox, template code-interpreter", "", b.n, b.firstRun(t.Name)); err != nil {
		return err
	}
	return b.time(ctx, "isolated print(6*7): create, run, gone; template code-interpreter", "< 60 ms", b.n, b.isolated(t.Name))
}

// isolated returns a run in a sandbox of its own.
func (b *bench) isolated(template string) figures.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		err := isAnswer(b.d.Client.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: answer, Template: template}, nil))
		return time.Since(began), err
	}
}
