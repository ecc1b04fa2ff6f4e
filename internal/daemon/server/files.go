package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/postgres"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// nodesFiles is what is known of nodes, and membersFiles that which the fleet keeps.
	nodesFiles, membersFiles = "nodes", "nodes/members"
	nodesAuthority           = nodesFiles + "/ca.pem"
	// templatesFiles are the records of templates, if servers share them.
	templatesFiles = "templates"
)

// sealedFiles are sealed where they are in a database.
var sealedFiles = map[string]bool{nodesAuthority: true, linkKeyFile: true}

// openFiles returns the small files of the installation. They are in the state directory, or
// in the database if that is PostgreSQL: another server with it needs them too. What a
// directory has from before is put into the database once. A server on standby that has none of
// them does not begin anew where another one has.
func openFiles(ctx context.Context, dir string, st recordStore, v *vault.Vault, standby bool, log *slog.Logger) (durable.Files, error) {
	here := durable.Dir(dir)
	if _, ok := st.(*postgres.Store); !ok {
		return here, nil
	}
	there := &recordFiles{st, v}
	if standby {
		if err := there.refuseOthers(ctx, here, st); err != nil {
			return nil, err
		}
	}
	if err := there.adopt(ctx, here, log); err != nil {
		return nil, fmt.Errorf("put files of the state directory into the database: %w", err)
	}
	return there, nil
}

// recordFiles implements [durable.Files] in a database.
type recordFiles struct {
	st    store.Files
	vault *vault.Vault
}

const (
	// writeTimeout bounds how long a write waits for a database that is away or busy: callers
	// keep others waiting meanwhile.
	writeTimeout = 10 * time.Second
	// removeTimeout bounds that of a removal. Most are tried again, or need not succeed.
	removeTimeout = 2 * time.Second
)

// stored returns the name of a file in the database.
func stored(name string) string {
	if sealedFiles[name] {
		return secrets.SealedFiles + name
	}
	return name
}

// Read implements [durable.Files].
func (f *recordFiles) Read(name string) ([]byte, error) {
	all, err := f.st.Files(context.Background(), stored(name))
	if err != nil {
		return nil, err
	}
	data, ok := all[stored(name)]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	if !sealedFiles[name] {
		return data, nil
	}
	var open []byte
	err = f.vault.Open(secrets.FileRef(stored(name)), data, func(value []byte) error {
		open = append(open, value...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s in the database cannot be opened; give this server the file %s or %s of those that used the database before: %w", name, vault.KeyFile, vault.EnvKey, err)
	}
	return open, nil
}

// ReadAll implements [durable.Files]. Sealed files are not among them.
func (f *recordFiles) ReadAll(dir string) (map[string][]byte, error) {
	return f.st.Files(context.Background(), dir+"/")
}

// Write implements [durable.Files].
func (f *recordFiles) Write(name string, data []byte) (err error) {
	if sealedFiles[name] {
		if data, err = f.vault.Seal(secrets.FileRef(stored(name)), data); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return f.st.WriteFile(ctx, stored(name), data)
}

// Remove implements [durable.Files].
func (f *recordFiles) Remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	removed, err := f.st.RemoveFile(ctx, stored(name))
	if err == nil && !removed {
		err = &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	return err
}

// RemoveAll implements [durable.Files].
func (f *recordFiles) RemoveAll(dir string) error {
	return f.st.RemoveFiles(context.Background(), dir+"/")
}

// Sync implements [durable.Files]: removals are durable.
func (f *recordFiles) Sync(string) error { return nil }

// refuseOthers fails if the database has sandboxes and not the files that belong to them, and
// this directory does not have these files either: they are in that of a server whose version
// kept them there, which then must be the first to put them into the database.
func (f *recordFiles) refuseOthers(ctx context.Context, here durable.Dir, st store.Store) error {
	if _, err := f.Read(linkKeyFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := here.Read(linkKeyFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, err := range store.All(ctx, st.ListSandboxes, store.SandboxFilter{Held: true}) {
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		return sandbox.Errorf(sandbox.CodeConflict, "the database has sandboxes of a server that keeps what it knows of nodes in its own state directory; start that server first with this version, and this one on standby then. If that directory is lost, start this server once without --standby")
	}
	return nil
}

// adopt puts the files of a directory into the database, if that has none yet.
func (f *recordFiles) adopt(ctx context.Context, here durable.Dir, log *slog.Logger) error {
	if _, err := f.Read(linkKeyFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	found, err := here.ReadAll(nodesFiles)
	if err != nil {
		return err
	}
	for name, data := range found {
		if err := errors.Join(ctx.Err(), f.Write(name, data)); err != nil {
			return err
		}
	}
	key, err := here.Read(linkKeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, err = linkKey(f)
	case err == nil:
		err = f.Write(linkKeyFile, key) // this last file says that all are there
	}
	if err == nil && len(found) > 0 {
		log.Info("what is known of nodes was copied into the database; delete the files in the state directory", "files", len(found), "directory", strings.TrimSuffix(string(here), "/")+"/"+nodesFiles)
	}
	return err
}
