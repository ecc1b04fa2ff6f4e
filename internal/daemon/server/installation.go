package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sh/cove/internal/durable"
)

// installationFile, in a directory of content, has the id of the database that
// has the records of that content.
const installationFile = "installation"

// checkInstallation refuses a state directory in which the database is not the
// one that has the records of sandboxes, snapshots and volumes beside it: what no
// record names would be set aside. It gives its id to directories that have none
// and are empty; adopts gives it to full ones too. Where names the database in errors.
func checkInstallation(stateDir, where, id string, adopts bool) error {
	contents := map[string][]string{
		"engine":  {"checkpoints/ckp-*", "cells/*"},
		"volumes": {"*/data"},
	}
	for _, name := range []string{"engine", "volumes"} {
		dir := filepath.Join(stateDir, name)
		file := filepath.Join(dir, installationFile)
		have, err := os.ReadFile(file)
		switch {
		case err == nil && strings.TrimSpace(string(have)) == id:
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("read the id of the installation: %w", err)
		}
		full, ferr := holdsAny(dir, contents[name])
		if ferr != nil {
			return ferr
		}
		if full && (err == nil || !adopts) {
			return fmt.Errorf("%s has data that %s has no record of, and starting would set it aside: restore the database that belongs to it, "+
				"or move the directories engine and volumes away to start over; only if they do belong together, run: echo %s > %s",
				dir, where, id, file)
		}
	}
	// Nothing is written before both are known to be right.
	for _, name := range []string{"engine", "volumes"} {
		if err := writeInstallation(filepath.Join(stateDir, name), id); err != nil {
			return fmt.Errorf("write the id of the installation: %w", err)
		}
	}
	return nil
}

// holdsAny reports whether a directory has a file that one of the patterns
// matches.
func holdsAny(dir string, patterns []string) (bool, error) {
	for _, pattern := range patterns {
		found, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return false, fmt.Errorf("look into %s: %w", dir, err)
		}
		if len(found) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// writeInstallation writes the id into a directory, which is made if it is
// missing, durably and all of it or nothing.
func writeInstallation(dir, id string) error {
	file := filepath.Join(dir, installationFile)
	if have, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(have)) == id {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := durable.WriteFile(file, []byte(id+"\n")); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(dir))
}
