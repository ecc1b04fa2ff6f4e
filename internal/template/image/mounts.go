package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// realPath resolves links; a path that does not exist is itself.
func realPath(p string) (string, error) {
	r, err := filepath.EvalSymlinks(p)
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Abs(p)
	}
	return r, err
}

// mountsBelow lists mount points in or below dir, outer ones first.
func mountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if p := unescape.Replace(f[4]); p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out, nil
}
