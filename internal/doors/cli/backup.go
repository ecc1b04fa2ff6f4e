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
		Use: "backup FILE", Short: "Back up the local server to one file, while it runs",
		Long: "Write all that the local server keeps into one file, while it runs: the database as of one instant\n" +
			"with the snapshots, paused sandboxes and volumes that it names, templates, and the keys that open\n" +
			"secrets and sign links. The file is for its owner only: who has it has the secrets too, unless their\n" +
			"key is in COVE_SECRETS_KEY. It is there whole or not at all, with checksums.\n\n" +
			"Sandboxes that run go on. Of them the records are in it; their memory and files are not, unless in\n" +
			"a snapshot: pause or snapshot what must survive. After cove restore they are failed, with the reason.\n" +
			"Volumes that are written to are copied file by file, so pause their sandboxes where files must fit\n" +
			"together. What cove recover lists, logs, pipes, sockets and devices are left out.",
		Example: "  cove backup cove-$(date +%F).tar.zst\n" +
			"  cove backup --config /etc/cove.yaml /mnt/backup/cove.tar.zst",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&opts.Config, "config", "", "configuration file of the server, to be kept too")
			f.BoolVar(&opts.NoTemplates, "no-templates", false, "leave built templates out; snapshots made of them need them")
		},
		Do: action{here: true, run: func(ctx context.Context, c *call) error { return c.writeBackup(ctx, opts) }},
	})
}

// withoutDatabaseServer refuses a command that works on the records in a state
// directory, where they are in a database server.
func (a *app) withoutDatabaseServer(instead string) error {
	store, err := a.store()
	if err == nil && store.Reveal() != "" {
		err = sandbox.Errorf(sandbox.CodeUnsupported, "the server's records are in PostgreSQL (COVE_STORE), of which this command knows nothing; %s: docs/postgres.md", instead)
	}
	return err
}

// localState returns the state directory for a command that works on it directly.
func (a *app) localState() (string, error) {
	if a.globals.URL != "" {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "this is about the server of this machine; leave out --url (COVE_URL)")
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
	c.say("%s has %s; keep it where its secrets are safe", opts.File, bytesText(info.Size()))
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
			a.say("%s %s, at %s", bytesText(bytes), verb, at)
		}
	}
}

func (a *app) restoreCommand() *cobra.Command {
	return a.make(command{
		Use: "restore FILE", Short: "Restore the state directory of a server from a backup",
		Long: "Restore the state directory of a server from a file that cove backup has made. The directory must be\n" +
			"empty or missing, at its former path, and no server may run. The checksums are compared before\n" +
			"anything is put in place.\n\n" +
			"Snapshots, paused sandboxes, volumes, secrets and keys are as they were. Memory goes on with a\n" +
			"processor of the same kind only; the files of a snapshot can be had on any. Sandboxes that ran are\n" +
			"failed, with a reason that says so. A configuration file that was kept becomes config.yaml in the\n" +
			"state directory; put it where the server looks for it.",
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
	a.say("%s is as it was on %s; start the server", dir, stamp(&about.CreatedAt))
	return nil
}
