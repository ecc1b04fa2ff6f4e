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

	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx/door"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud"
	superserve "github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// addressTime bounds the wait for the daemon's address.
	addressTime = 30 * time.Second
	maxAddress  = 64 << 10
)

// compatProduct is a product whose SDKs work with Cove.
type compatProduct struct {
	// name is the name of the command and of the API key, title that of the product.
	name, title string
	// tested lists the tested versions of the SDKs.
	tested string
	// env returns the variables that switch a program, for a server at base and an
	// API key of Cove's.
	env func(base, key string) []envVar
	// more returns variables that depend on this machine and not on the server; nil:
	// none.
	more func(*app) ([]envVar, error)
	// unset are variables that would make the SDKs use another server, or none.
	unset []string
	// note says what else a program must do; "" is nothing.
	note string
}

type envVar struct{ name, value string }

// compatProducts are in the order of the list.
var compatProducts = []compatProduct{
	{
		name: "e2b", title: "E2B", tested: e2b.Tested,
		env: func(base, key string) []envVar {
			return []envVar{
				{"E2B_API_URL", base + e2b.Prefix}, {"E2B_SANDBOX_URL", base}, {"E2B_VOLUME_API_URL", base + e2b.Prefix},
				{"E2B_API_KEY", access.FormatKey(key)},
			}
		},
		unset: []string{"E2B_DEBUG"},
	},
	{
		name: "hopx", title: "HOPX", tested: door.Tested,
		env: func(base, key string) []envVar {
			return []envVar{{"HOPX_BASE_URL", base + door.Prefix}, {"HOPX_API_KEY", key}}
		},
		note: "the SDK reads no environment variable for the server: set baseURL: process.env.HOPX_BASE_URL in the program, or it sends the key to HOPX; see docs/compat.md for another way",
	},
	{
		name: "daytona", title: "Daytona", tested: daytona.Tested,
		env: func(base, key string) []envVar {
			return []envVar{{"DAYTONA_API_URL", base + daytona.Prefix + daytona.ControlPath}, {"DAYTONA_API_KEY", key}}
		},
		unset: []string{"DAYTONA_SERVER_URL", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID", "DAYTONA_TARGET"},
	},
	{
		name: "superserve", title: "Superserve", tested: superserve.Tested,
		env: func(base, key string) []envVar {
			return []envVar{{"SUPERSERVE_BASE_URL", base + superserve.Prefix}, {"SUPERSERVE_API_KEY", key}}
		},
		more: (*app).superserveShim,
	},
	{
		name: "microsandbox", title: "microsandbox", tested: cloud.Tested,
		env: func(base, key string) []envVar {
			return []envVar{{"MSB_BACKEND", "cloud"}, {"MSB_API_URL", base + cloud.Prefix}, {"MSB_API_KEY", key}}
		},
		unset: []string{"MSB_PROFILE"},
	},
}

// keyName returns the name of the key that is made for the product's clients.
func (p *compatProduct) keyName() string { return "compat-" + p.name }

// keyFile returns the name of the file with the key's secret, in the state directory.
func (p *compatProduct) keyFile() string { return p.keyName() + ".key" }

// command returns the shell command that sets the environment.
func (p *compatProduct) command() string { return `eval "$(cove compat ` + p.name + `)"` }

func (a *app) compatCommand() *cobra.Command {
	cmd := a.make(command{
		Use: "compat", Short: "Use other products' SDKs with Cove",
		Long: "List the products whose SDKs work with Cove unmodified. Environment variables switch a program that\n" +
			"uses one of them to Cove.",
		Example: "  cove compat\n  " + compatProducts[0].command(),
		Do: action{here: true, run: func(_ context.Context, c *call) error {
			var rows [][]string
			for _, p := range compatProducts {
				rows = append(rows, []string{p.name, p.tested, p.command()})
			}
			return c.printTable([]string{"PRODUCT", "TESTED WITH", "ENABLE WITH"}, rows)
		}},
	})
	for i := range compatProducts {
		cmd.AddCommand(a.compatProductCommand(&compatProducts[i]))
	}
	return cmd
}

func (a *app) compatProductCommand(p *compatProduct) *cobra.Command {
	return a.make(command{
		Use: p.name, Short: "Print the environment variables that point " + p.title + "'s SDKs to Cove",
		Long: "Print the environment variables that point " + p.title + "'s SDKs to Cove, as shell commands. The daemon is\nstarted if necessary. " +
			"The key is created once and kept in the state directory, in " + p.keyFile() + ";\n" +
			"with --url, the key of --key is printed instead. With --json, env has the variables to set, unset\n" +
			"the variables to unset, and note what else the program must do.\n\n" +
			"A daemon started on demand stops after " + onDemandIdle + " without clients and sandboxes, and gets the same\n" +
			"address when it starts again. To keep a daemon running, use: cove serve",
		Example: "  " + p.command() + "\n  cove compat " + p.name + " --json",
		Do:      action{here: true, json: true, run: func(ctx context.Context, c *call) error { return c.compat(ctx, p) }},
	})
}

// compat prints the environment by which a product's clients use Cove.
func (c *call) compat(ctx context.Context, p *compatProduct) error {
	base, key := strings.TrimRight(c.globals.URL, "/"), c.globals.Key
	if base == "" {
		var err error
		if base, err = c.compatAddress(ctx); err != nil {
			return err
		}
		if key, err = c.compatKey(ctx, p); err != nil {
			return err
		}
	}
	if key == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "a remote server needs an API key; set --key or COVE_API_KEY")
	}
	env := p.env(base, key)
	if p.more != nil {
		more, err := p.more(c.app)
		if err != nil {
			return err
		}
		env = append(env, more...)
	}
	if c.json {
		return c.printJSON(p.view(env))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Point %s's SDKs to Cove (tested with %s).\n", p.title, p.tested)
	for _, v := range env {
		fmt.Fprintf(&b, "export %s='%s'\n", v.name, strings.ReplaceAll(v.value, "'", `'\''`))
	}
	for _, name := range p.unset {
		fmt.Fprintf(&b, "unset %s\n", name)
	}
	if p.note != "" { // where eval does not take it
		c.say("%s", p.note)
	}
	return c.print(b.String())
}

// compatView has the variables to set and unset, and the note.
type compatView struct {
	Env   map[string]string `json:"env"`
	Unset []string          `json:"unset"`
	Note  string            `json:"note,omitempty"`
}

func (p *compatProduct) view(env []envVar) compatView {
	v := compatView{Env: map[string]string{}, Unset: append([]string{}, p.unset...), Note: p.note}
	for _, e := range env {
		v.Env[e.name] = e.value
	}
	return v
}

// compatAddress returns the address at which other programs reach the local daemon,
// which is started if necessary.
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
		return "", sandbox.Errorf(sandbox.CodeUnavailable, "the daemon does not report its address, perhaps because it is another version; run: cove daemon restart")
	}
	if said.Base == "" {
		return "", sandbox.Errorf(sandbox.CodeUnavailable, "the daemon has no TCP address that other programs can use; start it with cove serve, or name a server with --url")
	}
	return strings.TrimSuffix(said.Base, e2b.Prefix), nil
}

// keptKey is a key that this command has made.
type keptKey struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

// compatKey returns the key that is kept for a product's clients, and makes one if there
// is no valid one.
func (a *app) compatKey(ctx context.Context, p *compatProduct) (string, error) {
	dir, err := a.stateDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, p.keyFile())
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
		return "", fmt.Errorf("read the key for %s's clients: %w", p.title, err)
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
	made, err := c.CreateKey(ctx, sandbox.CreateKeyRequest{Name: p.keyName()})
	if err != nil {
		return "", err
	}
	if data, err = json.Marshal(keptKey{made.ID, made.Secret}); err != nil {
		return "", err
	}
	if err := durable.WriteFile(file, data); err != nil {
		return "", fmt.Errorf("save the key for %s's clients: %w", p.title, err)
	}
	return made.Secret, nil
}
