package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// parseVolume reads NAME:TARGET[:ro|:rw], or with a path for NAME a directory of
// the server.
func parseVolume(s string) (sandbox.Mount, error) {
	source, rest, ok := strings.Cut(s, ":")
	target, mode, moded := strings.Cut(rest, ":")
	if !ok || source == "" || target == "" || moded && mode != "ro" && mode != "rw" {
		return sandbox.Mount{}, fmt.Errorf("%q is not of the form NAME:/path or NAME:/path:ro", s)
	}
	m := sandbox.Mount{Target: target, ReadOnly: mode == "ro"}
	if strings.HasPrefix(source, "/") {
		m.Host = source
	} else {
		m.Volume = source
	}
	return m, nil
}

// parseMount reads pairs, separated by commas.
func parseMount(s string) (sandbox.Mount, error) {
	var m sandbox.Mount
	kind, source := "volume", ""
	for pair := range strings.SplitSeq(s, ",") {
		key, value, given := strings.Cut(pair, "=")
		switch key {
		case "type":
			kind = value
		case "source", "src":
			source = value
		case "target", "dst", "destination":
			m.Target = value
		case "readonly", "ro":
			yes, err := strconv.ParseBool(value)
			if given && err != nil {
				return m, fmt.Errorf("%s=%s is not valid; use true or false", key, value)
			}
			m.ReadOnly = yes || !given
		case "tmpfs-size":
			var err error
			if m.SizeMiB, err = parseMiB(value); err != nil {
				return m, fmt.Errorf("tmpfs-size: %w", err)
			}
		default:
			return m, fmt.Errorf("%q is not known; use type, source, target, readonly and tmpfs-size", key)
		}
	}
	switch kind {
	case "volume":
		m.Volume = source
	case "bind":
		m.Host = source
	case "tmpfs":
		m.Tmpfs = true
	default:
		return m, fmt.Errorf("type %q is not known; use volume, bind or tmpfs", kind)
	}
	if m.Target == "" || (source == "") != m.Tmpfs {
		return m, fmt.Errorf("%q needs a target, and a source unless the type is tmpfs", s)
	}
	return m, nil
}
