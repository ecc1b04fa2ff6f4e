package builds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// maxBlockedTold bounds the blocked destinations that an error names.
const maxBlockedTold = 5

// logWait bounds the wait for the network log, if it may explain a failure.
const logWait = 2 * time.Second

// ofNetwork matches the output of failures that the network may have caused.
var ofNetwork = lazyregexp.New(`(?i)resolve|not known|network|connect|refused|unreachable|timed? ?out|Failed to fetch|No matching distribution`)

// noPackage has, by installer, the words for packages that a registry does not have.
var noPackage = map[string][]string{
	"apt": {"Unable to locate package", "has no installation candidate", "was not found"},
	"pip": {"No matching distribution found"},
	"npm": {"code E404", "code ETARGET"},
}

// advise adds advice to the error of a failed command of a step, if the cause can be
// seen: if the network is denied, installers say that a package does not exist, or
// suspect a proxy.
func (x *Builder) advise(ctx context.Context, m *buildMachine, installs, network string, err error) error {
	code := sandbox.CodeOf(err)
	if code != sandbox.CodeInvalid && code != sandbox.CodeConflict && code != sandbox.CodeTimeout {
		return err // not an error of the command
	}
	said := sandbox.MessageOf(err)
	blocked := x.blockedIn(ctx, m.id)
	for late := time.Now().Add(logWait); len(blocked) == 0 && time.Now().Before(late) && ofNetwork.MatchString(said); blocked = x.blockedIn(ctx, m.id) {
		select { // the log is written a little later, on a busy disk much later
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
	if len(blocked) > 0 {
		return sandbox.Wrap(code, err, fmt.Sprintf("%s\nits network policy blocked %s; if the step needs that, allow it in %s", said, strings.Join(blocked, ", "), network))
	}
	if strings.Contains(said, "No space left on device") {
		return sandbox.Wrap(code, err, said+"\nits disk is full: raise resources.disk_mib, or free space on the server's disk, where Cove keeps its state")
	}
	has := func(words string) bool { return strings.Contains(said, words) }
	if slices.ContainsFunc(noPackage[installs], has) && !has("Failed to fetch") {
		return sandbox.Wrap(code, err, fmt.Sprintf("%s\nthere is no such package or version where %s looks for it; correct %[2]s in the template", said, installs))
	}
	return err
}

// blockedIn returns the destinations that the network policy of a build's sandbox has
// denied, with reasons.
func (x *Builder) blockedIn(ctx context.Context, id string) []string {
	if x.cfg.NetworkLog == nil {
		return nil
	}
	events, _, err := x.cfg.NetworkLog.NetworkLog(ctx, id, sandbox.NetworkLogRequest{Verdict: sandbox.NetworkBlocked, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		x.cfg.Log.Warn("read the network log of a build", "instance", id, "error", err)
		return nil
	}
	var told []string
	seen := map[string]bool{}
	for _, e := range events {
		where := cmp.Or(e.Host, e.Address)
		if where == "" || seen[where] {
			continue
		}
		if seen[where] = true; len(told) == maxBlockedTold {
			return append(told, "and more")
		}
		told = append(told, fmt.Sprintf("%s (%s)", plain(where), e.Reason))
	}
	return told
}

// plain returns a name, quoted if it has characters that host names cannot have.
func plain(name string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }
	if len(name) > 80 || strings.ContainsFunc(name, odd) {
		return validate.Quote(name)
	}
	return name
}
