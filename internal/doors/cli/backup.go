package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/daemon/backup"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) backupCommand() *cobra.Command {
	var opts backup.Options
	return a.make(command{
		Use: "backup FILE", Short: "Back up the local server to a file while it runs",
		Long: "Write everything the local server keeps to one file, while the server runs: the database as of one\n" +
			"instant, the snapshots, paused sandboxes and volumes it names, the templates, and the keys that\n" +
			"unseal secrets and sign links. The backup is written with checksums, and completely or not at all.\n\n" +
			"Anyone who can read the file can read the secrets, unless their key is in COVE_SECRETS_KEY. Only\n" +
			"its owner gets access to it.\n\n" +
			"Running sandboxes keep running. The backup has their records, but not their memory and files: pause\n" +
			"or snapshot what must survive. After cove restore they are failed, with a reason. A volume that is in\n" +
			"use is copied file by file: pause its sandboxes if its files must be consistent with each other. The\n" +
			"backup leaves out what cove recover lists, logs, pipes, sockets and devices.",
		Example: "  cove backup cove-$(date +%F).tar.zst\n" +
			"  cove backup --config /etc/cove.yaml /mnt/backup/cove.tar.zst",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&opts.Config, "config", "", "Include this server configuration file")
			f.BoolVar(&opts.NoTemplates, "no-templates", false, "Leave out built templates (snapshots made from them need them)")
		},
		Do: action{here: true, run: func(ctx context.Context, c *call) error { return c.writeBackup(ctx, opts) }},
	})
}

// withoutDatabaseServer refuses a command that works on the records in a state
// directory, where they are in a database server.
func (a *app) withoutDatabaseServer(instead string) error {
	store, err := a.store()
	if err == nil && store.Reveal() != "" {
		err = sandbox.Errorf(sandbox.CodeUnsupported, "the server's records are in PostgreSQL (COVE_STORE), which this command cannot read; %s: see docs/postgres.md", instead)
	}
	return err
}

// localState returns the state directory for a command that works on it directly.
func (a *app) localState() (string, error) {
	if a.globals.URL != "" {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "this command works on the local server; run it without --url and COVE_URL")
	}
	return a.stateDir()
}

func (c *call) writeBackup(ctx context.Context, opts backup.Options) (err error) {
	if opts.StateDir, err = c.localState(); err != nil {
		return err
	}
	if err := c.withoutDatabaseServer("stop the server, and keep the state directory and what pg_dump writes together"); err != nil {
		return err
	}
	if opts.File, err = filepath.Abs(c.args[0]); err != nil {
		return err
	}
	opts.Version = c.Version
	opts.Progress, opts.Warn = c.progress("read"), func(text string) { c.say("%s", text) }
	if err := backup.Write(ctx, opts); err != nil {
		return err
	}
	info, err := os.Stat(opts.File)
	if err != nil {
		return err
	}
	c.say("wrote %s (%s); it contains secrets, so keep it safe", opts.File, bytesText(info.Size()))
	return nil
}

// progressEvery is how often a long command reports its progress.
const progressEvery = 2 * time.Second

// progress returns a function that reports progress every progressEvery.
func (a *app) progress(verb string) func(bytes int64, at string) {
	last := time.Now()
	return func(bytes int64, at string) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			a.say("%s %s (%s)", bytesText(bytes), verb, at)
		}
	}
}

func (a *app) restoreCommand() *cobra.Command {
	return a.make(command{
		Use: "restore FILE", Short: "Restore a server's state directory from a backup",
		Long: "Restore a server's state directory from a file that cove backup wrote. The directory must be empty or\n" +
			"missing, its path must be the same as before, and no server may be running. Checksums are verified\n" +
			"before anything is put in place.\n\n" +
			"Snapshots, paused sandboxes, volumes, secrets and keys come back as they were. Saved memory needs a\n" +
			"processor of the same kind; the files of a snapshot work on any. Sandboxes that were running are\n" +
			"failed, with a reason. A configuration file in the backup is written to config.yaml in the state\n" +
			"directory; move it to where the server reads it.",
		Example: "  cove daemon stop\n" +
			"  mv /var/lib/cove /var/lib/cove.old\n" +
			"  cove restore cove-2026-03-04.tar.zst",
		Do: action{here: true, run: func(ctx context.Context, c *call) error { return c.runRestore(ctx, c.args[0]) }},
	})
}

func (a *app) runRestore(ctx context.Context, file string) (err error) {
	dir, err := a.localState()
	if err != nil {
		return err
	}
	if err := a.withoutDatabaseServer("put back the state directory, and the database with pg_restore"); err != nil {
		return err
	}
	release, err := server.Hold(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	about, err := backup.Restore(ctx, file, dir, a.progress("restored"))
	if err != nil {
		return err
	}
	a.say("restored %s to its state of %s; start the server", dir, stamp(&about.CreatedAt))
	return nil
}
