package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) cpCommand() *cobra.Command {
	var owner string
	maxSize := int64(16 << 10)
	return a.make(command{
		Use: "cp [flags] SOURCE TARGET", Short: "Copy files between this machine and a sandbox",
		Long: "Copy a file or a directory into or out of a sandbox. Write the path in the sandbox as SANDBOX:PATH;\n" +
			"- is standard input or output. If the target is a directory or ends in /, the source keeps its name.\n\n" +
			"A file appears completely or not at all. Symbolic links in a directory are copied as links, whatever\n" +
			"their target. Pipes, sockets and devices are left out.",
		Example: "  cove cp main.py work:/workspace/\n" +
			"  cove cp work:/workspace/out ./out\n" +
			"  curl -s https://example.com/data | cove cp - work:data.csv\n" +
			"  cove cp work:/workspace/result.json - | jq .",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&owner, "owner", "", "Owner in the sandbox: a user, or uid[:gid]")
			f.Var(sizeFlag(&maxSize), "max-size", "Limit on the unpacked size of a directory from a sandbox (default 16g)")
		},
		Do: action{run: func(ctx context.Context, c *call) error {
			source, target := parseSide(c.args[0]), parseSide(c.args[1])
			if (source.sandbox == "") == (target.sandbox == "") {
				return c.misuse("cp: write one path as SANDBOX:PATH and the other as a path on this machine")
			}
			if target.sandbox != "" {
				u := &upload{app: c.app, c: c.client, sandbox: target.sandbox, owner: owner}
				return u.run(ctx, source.path, target.path)
			}
			d := &download{app: c.app, c: c.client, sandbox: source.sandbox, maxBytes: maxSize << 20}
			return d.run(ctx, source.path, target.path)
		}},
	})
}

// side is one end of a copy.
type side struct {
	sandbox string // empty is this machine
	path    string
}

func parseSide(arg string) side {
	name, path, ok := strings.Cut(arg, ":")
	if !ok || name == "" || strings.ContainsAny(name, "/.") {
		return side{path: arg}
	}
	if path == "" {
		path = "."
	}
	return side{sandbox: name, path: path}
}

// meter counts the bytes of a copy and shows its progress.
type meter struct {
	io.Reader
	bar  *bar
	done int64
	size int64 // 0 if unknown
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.done += int64(n)
	if m.size > 0 {
		m.bar.show(float64(m.done)/float64(m.size), bytesText(m.done)+" of "+bytesText(m.size))
	} else {
		m.bar.show(-1, bytesText(m.done))
	}
	return n, err
}

// measured wraps a source of known or unknown (0) size with a bar, which close
// removes.
func (a *app) measured(r io.Reader, size int64) (m *meter, closeBar func()) {
	b := a.newBar()
	return &meter{Reader: r, bar: b, size: size}, b.clear
}

// hereError describes a failed operation on a file of this machine.
func hereError(what, path string, err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}
