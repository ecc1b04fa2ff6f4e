package agent

import (
	"path/filepath"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// resolvePath makes p absolute and clean; a relative one starts at workdir.
func resolvePath(workdir, p string) (string, error) {
	switch {
	case p == "":
		return "", invalid("the path is empty; give an absolute path or one relative to the working directory")
	case strings.IndexByte(p, 0) >= 0:
		return "", invalid("the path holds a NUL byte; remove it")
	case len(p) > sandbox.MaxPathBytes:
		return "", invalid("the path is longer than %d bytes; give a shorter one", sandbox.MaxPathBytes)
	}
	if !strings.HasPrefix(p, "/") {
		p = workdir + "/" + p
	}
	p = filepath.Clean("/" + p)
	if len(p) > sandbox.MaxPathBytes {
		return "", invalid("the path is longer than %d bytes; give a shorter one", sandbox.MaxPathBytes)
	}
	return p, nil
}

// path resolves a path of a file request.
func (a *Agent) path(p string) (string, error) {
	return resolvePath(a.current().workdir, p)
}
