//go:build kube

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

const (
	benchRuns = 20
	// heldBytes is the memory that a paused sandbox holds.
	heldBytes = 100 << 20
	// ratedSandboxes are created as fast as possible, by so many callers at a time.
	ratedSandboxes, ratedCallers = 60, 6
	// slowest is how long a part of a measurement may take that is not measured.
	slowest = 5 * time.Minute
)

// BenchmarkCluster measures sandboxes on a cluster of two nodes, and beside it on a daemon
// of one machine, which has the same processors. It prints a table.
func BenchmarkCluster(b *testing.B) {
	i := install(b, plain)
	i.storeObjects(b)
	i.awaitNodes(b)
	d := covetest.Start(b, covetest.Options{Args: []string{"--warm", "1"}})
	for b.Loop() {
		var rows []figures.Series
		for _, at := range []*place{{"one machine: ", d.Client}, {"cluster: ", i.client}} {
			all, err := at.measure(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			rows = append(rows, all...)
		}
		moved, err := figures.Measure(b.Context(), "cluster: exec true in a paused sandbox, on the other node", "", benchRuns/2, i.elsewhere)
		if err != nil {
			b.Fatal(err)
		}
		if err := figures.Print(os.Stdout, append(rows, moved)); err != nil {
			b.Fatal(err)
		}
	}
}

// place is where sandboxes are measured.
type place struct {
	name   string
	client *client.Client
}

// measure measures the life of sandboxes, and how fast they are created.
func (p *place) measure(ctx context.Context) (rows []figures.Series, err error) {
	add := func(name string, n int, do figures.Timed) {
		if err == nil {
			var s figures.Series
			s, err = figures.Measure(ctx, p.name+name, "", n, do)
			rows = append(rows, s)
		}
	}
	add("create", benchRuns, func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		s, err := p.client.Create(ctx, covetest.Small())
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		_, err = p.client.Kill(ctx, s.ID)
		return took, err
	})
	if err != nil {
		return nil, err
	}
	id, err := p.holding(ctx)
	if err != nil {
		return nil, err
	}
	defer p.client.Kill(context.WithoutCancel(ctx), id)
	add("exec true", 3*benchRuns, figures.Whole(func(ctx context.Context) error { return p.sh(ctx, id, "true") }))
	add("fork, until the child runs true", benchRuns, func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		list, err := p.client.Fork(ctx, id, sandbox.ForkRequest{})
		if err == nil {
			err = p.sh(ctx, list.Items[0].ID, "true")
		}
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		_, err = p.client.Kill(ctx, list.Items[0].ID)
		return took, err
	})
	resumed := figures.Series{Name: p.name + "exec true in it, on the same node"}
	add("pause, 100 MiB of memory", benchRuns, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		if _, err := p.client.Pause(ctx, id); err != nil {
			return 0, err
		}
		paused := time.Now()
		err := p.sh(ctx, id, "true")
		resumed.Values = append(resumed.Values, time.Since(paused))
		return paused.Sub(began), err
	})
	if err != nil {
		return nil, err
	}
	resumed.Values = resumed.Values[1:] // the warm-up run
	rows = append(rows, resumed)
	rate, err := p.rate(ctx)
	return append(rows, rate), err
}

// holding makes a sandbox with a program that holds memory.
func (p *place) holding(ctx context.Context) (id string, err error) {
	req := covetest.Small()
	req.Resources.MemoryMiB = 512
	s, err := p.client.Create(ctx, req)
	if err != nil {
		return "", err
	}
	res, err := p.client.RunCode(ctx, s.ID, sandbox.RunCodeRequest{Language: sandbox.Python, Code: fmt.Sprintf("import os; held = os.urandom(%d); len(held)", heldBytes)}, nil)
	if err == nil && res.Error != nil {
		err = fmt.Errorf("hold memory: %+v", res.Error)
	}
	return s.ID, err
}

// sh runs a shell line that must succeed.
func (p *place) sh(ctx context.Context, id, line string) error {
	job, err := p.client.Exec(ctx, id, sandbox.ExecRequest{Shell: line}, nil)
	if err == nil && job.ExitCode != 0 {
		err = fmt.Errorf("%q: exit code %d", line, job.ExitCode)
	}
	return err
}

// rate creates sandboxes as fast as possible, and kills each once it runs.
func (p *place) rate(ctx context.Context) (figures.Series, error) {
	s := figures.Series{Name: fmt.Sprintf("%screate and kill, %d at a time", p.name, ratedCallers)}
	var g errgroup.Group
	g.SetLimit(ratedCallers)
	began := time.Now()
	for range ratedSandboxes {
		g.Go(func() error {
			s, err := p.client.Create(ctx, covetest.Small())
			if err != nil {
				return err
			}
			_, err = p.client.Kill(ctx, s.ID)
			return err
		})
	}
	err := g.Wait()
	s.Note = fmt.Sprintf("%.1f a second", ratedSandboxes/time.Since(began).Seconds())
	return s, err
}

// elsewhere pauses a sandbox, drains its node, and measures the next call, which resumes it
// on the other node.
func (i *installation) elsewhere(ctx context.Context) (took time.Duration, err error) {
	p := &place{client: i.client}
	id, err := p.holding(ctx)
	if err != nil {
		return 0, err
	}
	defer i.client.Kill(context.WithoutCancel(ctx), id)
	s, err := i.client.Pause(ctx, id)
	if err != nil {
		return 0, err
	}
	if _, err := i.client.DrainNode(ctx, s.Node, sandbox.DrainRequest{Move: true}); err != nil {
		return 0, err
	}
	defer func() {
		_, uerr := i.client.UndrainNode(context.WithoutCancel(ctx), s.Node)
		err = errors.Join(err, uerr)
	}()
	if !covetest.Eventually(slowest, func() bool {
		var at *sandbox.Sandbox
		at, err = i.client.Get(ctx, id)
		return err != nil || at.Stored == sandbox.StoredBoth
	}) {
		return 0, fmt.Errorf("the state of %s is not stored after %s", id, slowest)
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.sh(ctx, id, "true"); err != nil {
		return 0, err
	}
	took = time.Since(began)
	at, err := i.client.Get(ctx, id)
	if err == nil && at.Node == s.Node {
		err = fmt.Errorf("%s was resumed on %s, which is drained", id, at.Node)
	}
	return took, err
}
