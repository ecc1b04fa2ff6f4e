package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/client"
	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb/processpbconnect"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// door measures what E2B's door adds to a command. It alternates the request that the SDK
// sends, sent from Go, with the same command by the Go client over the same TCP, so that
// other load on the machine affects both.
func (b *bench) door(ctx context.Context, shell sandbox.ExecRequest) error {
	own, err := client.New(client.Config{URL: b.d.URL})
	if err != nil {
		return err
	}
	return b.withSandbox(ctx, func(id string) error {
		start, err := b.e2bCommand(ctx, id, shell.Command)
		if err != nil {
			return err
		}
		var direct, through []time.Duration
		for i := range 20*b.n + 1 {
			for _, way := range []struct {
				values *[]time.Duration
				do     func(context.Context) error
			}{{&direct, func(ctx context.Context) error { _, err := own.Exec(ctx, id, shell, nil); return err }}, {&through, start}} {
				began := time.Now()
				if err := way.do(ctx); err != nil {
					return err
				}
				if i > 0 { // the first of each is a warm-up
					*way.values = append(*way.values, time.Since(began))
				}
			}
		}
		b.rows = append(b.rows, figures.Series{Name: "bash -l -c true, Go client, HTTP", Values: direct}, figures.Series{Name: "the same in turn by E2B's request, Go, HTTP", Values: through})
		b.note("E2B's door, added to the median", "< 2 ms", "%.2f ms", float64((median(through)-median(direct)).Microseconds())/1000)
		return nil
	})
}

func median(values []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// e2bCommand returns a function that runs a command in a sandbox by E2B's protocol.
func (b *bench) e2bCommand(ctx context.Context, id string, command []string) (func(context.Context) error, error) {
	name := strings.Replace(id, "sbx-", "sbx", 1)
	token, err := b.e2bToken(ctx, name)
	if err != nil {
		return nil, err
	}
	processes := processpbconnect.NewProcessClient(http.DefaultClient, b.d.URL, connect.WithProtoJSON())
	return func(ctx context.Context) error {
		req := connect.NewRequest(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: command[0], Args: command[1:]}, Stdin: new(false)})
		req.Header().Set("E2b-Sandbox-Id", name)
		req.Header().Set("E2b-Sandbox-Port", "49983")
		req.Header().Set("X-Access-Token", token)
		stream, err := processes.Start(ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		ended := false
		for stream.Receive() {
			if end := stream.Msg().GetEvent().GetEnd(); end != nil {
				if ended = true; end.GetExitCode() != 0 {
					return fmt.Errorf("it ended with %d", end.GetExitCode())
				}
			}
		}
		if err := stream.Err(); err != nil || !ended {
			return fmt.Errorf("a command by E2B's protocol: ended %v, %w", ended, err)
		}
		return nil
	}, nil
}

// e2bToken connects to a sandbox as E2B's SDK does, and returns the token for it.
func (b *bench) e2bToken(ctx context.Context, name string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.d.URL+"/e2b/v2/sandboxes/"+name+"/connect", bytes.NewReader([]byte("{}")))
	if err != nil {
		return "", err
	}
	req.Header.Set("X-API-Key", "e2b_00")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var said struct{ EnvdAccessToken string }
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || said.EnvdAccessToken == "" {
		return "", fmt.Errorf("connect to %s by E2B's protocol: %s, %w", name, resp.Status, err)
	}
	return said.EnvdAccessToken, nil
}
