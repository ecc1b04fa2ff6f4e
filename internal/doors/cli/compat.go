package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// compatKeyName is the name of the key that is made for a product's clients, and
	// compatKeyFile where its secret stays, in the state directory.
	compatKeyName = "compat-e2b"
	compatKeyFile = "compat-e2b.key"
	// addressTime bounds how long the daemon may take to tell its address.
	addressTime = 30 * time.Second
	maxAddress  = 64 << 10
)

func (a *app) compatCommand() *cobra.Command {
	cmd := a.make(command{
		Use: "compat", Short: "Use other products' SDKs with Cove",
		Long: "List the products whose own SDKs work with Cove, unmodified: a program that uses one is switched\n" +
			"by environment variables alone.",
		Example: "  cove compat\n  eval \"$(cove compat e2b)\"",
		Do: action{here: true, run: func(_ context.Context, c *call) error {
			return c.printTable([]string{"PRODUCT", "TESTED WITH", "SWITCH BY"}, [][]string{{"e2b", e2b.Tested, `eval "$(cove compat e2b)"`}})
		}},
	})
	cmd.AddCommand(a.make(command{
		Use: "e2b", Short: "Print the environment by which E2B's SDKs use Cove",
		Long: "Print the environment variables by which E2B's SDKs use Cove, as lines for a shell. The daemon is\n" +
			"started if it does not run. A key is made once and kept in the state directory, in " + compatKeyFile + ";\n" +
			"with --url, the lines have the key of --key.\n\n" +
			"A daemon that was started on demand ends after " + onDemandIdle + " without clients and sandboxes, and has the same\n" +
			"address when it is started again; one that stays is started with: cove serve",
		Example: "  eval \"$(cove compat e2b)\"\n  cove compat e2b --json",
		Do:      action{here: true, json: true, run: func(ctx context.Context, c *call) error { return c.compatE2B(ctx) }},
	}))
	return cmd
}

func (c *call) compatE2B(ctx context.Context) error {
	base, key := strings.TrimRight(c.globals.URL, "/"), c.globals.Key
	if base == "" {
		var err error
		if base, err = c.compatAddress(ctx); err != nil {
			return err
		}
		if key, err = c.compatKey(ctx); err != nil {
			return err
		}
	}
	if key == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "a server far away asks for a key; give one with --key or COVE_API_KEY")
	}
	env := []struct{ name, value string }{
		{"E2B_API_URL", base + e2b.Prefix}, {"E2B_SANDBOX_URL", base}, {"E2B_VOLUME_API_URL", base + e2b.Prefix},
		{"E2B_API_KEY", access.FormatKey(key)},
	}
	if c.json {
		values := map[string]string{}
		for _, v := range env {
			values[v.name] = v.value
		}
		return c.printJSON(values)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# E2B's SDKs use Cove with these; tested with %s.\n", e2b.Tested)
	for _, v := range env {
		fmt.Fprintf(&b, "export %s='%s'\n", v.name, strings.ReplaceAll(v.value, "'", `'\''`))
	}
	// This one would have the SDKs ask no server at all.
	b.WriteString("unset E2B_DEBUG\n")
	return c.print(b.String())
}

// compatAddress asks the local daemon, which is started if need be, for the
// address that other programs reach it at.
func (a *app) compatAddress(ctx context.Context) (string, error) {
	dir, err := a.stateDir()
	if err != nil {
		return "", err
	}
	d := a.localDaemon(dir)
	ctx, cancel := context.WithTimeout(ctx, startTime+addressTime)
	defer cancel()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+e2b.Prefix+e2b.AddressPath, nil)
	if err != nil {
		return "", err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return "", err
	}
	defer closeQuietly(resp.Body)
	var said struct{ Base string }
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAddress))
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(data, &said) != nil {
		return "", sandbox.Errorf(sandbox.CodeUnavailable, "the daemon does not tell its address; it may be of another version: cove daemon restart")
	}
	if said.Base == "" {
		return "", sandbox.Errorf(sandbox.CodeUnavailable, "the daemon has no TCP address that other programs could use; start it with: cove serve, or name the server with --url")
	}
	return strings.TrimSuffix(said.Base, e2b.Prefix), nil
}

// keptKey is a key that this command has made.
type keptKey struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

// compatKey returns the key that is kept for E2B's clients, and makes one if there
// is none, or none that is good any more.
func (a *app) compatKey(ctx context.Context) (string, error) {
	dir, err := a.stateDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, compatKeyFile)
	lock, err := lockFile(ctx, file+".lock")
	if err != nil {
		return "", err
	}
	defer closeQuietly(lock)
	c, err := a.connect()
	if err != nil {
		return "", err
	}
	defer closeQuietly(c)
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the key for E2B's clients: %w", err)
	}
	var kept keptKey
	if err == nil && json.Unmarshal(data, &kept) == nil && kept.Secret != "" {
		keys, err := sandbox.All(ctx, c.ListKeys)
		if err != nil {
			return "", err
		}
		for i := range keys {
			if keys[i].ID == kept.ID && keyState(&keys[i]) == "valid" {
				return kept.Secret, nil
			}
		}
	}
	made, err := c.CreateKey(ctx, sandbox.CreateKeyRequest{Name: compatKeyName})
	if err != nil {
		return "", err
	}
	if data, err = json.Marshal(keptKey{made.ID, made.Secret}); err != nil {
		return "", err
	}
	if err := durable.WriteFile(file, data); err != nil {
		return "", fmt.Errorf("keep the key for E2B's clients: %w", err)
	}
	return made.Secret, nil
}
