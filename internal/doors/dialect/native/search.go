package native

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The bounds of a search. The result says which one was reached.
const (
	maxSearchFiles   = 20_000           // entries listed
	maxSearchRead    = 1 << 20          // bytes of a file whose content is searched
	maxSearchBytes   = 64 << 20         // bytes read in all
	maxSearchTime    = 20 * time.Second // clients give up a call after 60 s
	maxSearchLine    = 300              // bytes of a line that are shown
	maxSearchPattern = 1000             // bytes of a pattern
	searchAtOnce     = 8                // concurrent requests
)

// skippedNames and skippedPaths are directories that a search does not enter: they are
// large and seldom what is searched for.
var (
	skippedNames = []string{".git", "node_modules"}
	skippedPaths = []string{"/proc", "/sys", "/dev"}
)

type searchArgs struct {
	sandboxRef
	Path       string `json:"path,omitempty"`
	Name       string `json:"name,omitempty"`
	Content    string `json:"content,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Limit      int    `json:"limit,omitempty"`
}

// searchMatch is an entry whose name matches, or a line of one.
type searchMatch struct {
	Path      string           `json:"path"`
	Type      sandbox.FileType `json:"type"`
	SizeBytes int64            `json:"size_bytes"`
	Line      int              `json:"line,omitempty"`
	Text      string           `json:"text,omitempty"`
}

type searchResult struct {
	Matches   []searchMatch `json:"matches"`
	Searched  int           `json:"searched"`
	Skipped   int           `json:"skipped"`
	Truncated bool          `json:"truncated"`
	Hint      string        `json:"hint,omitempty"`
}

func searchFiles(ctx context.Context, c *dialect.Call, in searchArgs) (*reply[*searchResult], error) {
	if in.Name == "" && in.Content == "" {
		return nil, invalid("file_search: give name (a glob), content (a regular expression) or both")
	}
	s := &search{svc: c.Service, sandbox: in.Sandbox, limit: in.Limit, status: c.Status}
	var err error
	if s.name, err = globRegexp(in.Name, in.IgnoreCase); err != nil {
		return nil, err
	}
	if in.Content != "" {
		flags := ""
		if in.IgnoreCase {
			flags = "(?i)"
		}
		if s.content, err = regexp.Compile(flags + in.Content); err != nil {
			return nil, invalid("file_search: content is not a regular expression of RE2, which has no look-around and no back references: %s", clip.Text(err.Error(), 64))
		}
	}
	late, cancel := context.WithTimeout(ctx, maxSearchTime)
	defer cancel()
	res, err := s.run(late, in.Path)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return answer(res.text(s.content != nil), res)
}

type search struct {
	svc           sandbox.Service
	sandbox       string
	name, content *regexp.Regexp // nil matches all
	limit         int
	status        func(string)

	res  searchResult
	size int    // bytes of the matches
	full string // which bound was reached, "" if none
}

// run searches. When the deadline of ctx passes, the result is what was found so far.
func (s *search) run(ctx context.Context, root string) (*searchResult, error) {
	s.res.Matches = []searchMatch{}
	info, err := s.svc.StatFile(ctx, s.sandbox, root)
	if err != nil {
		return nil, err
	}
	found := []sandbox.FileInfo{*info}
	if info.Type == sandbox.TypeDirectory {
		if found, err = s.walk(ctx, info.Path); err != nil {
			return nil, err
		}
	}
	s.res.Searched = len(found)
	found = slices.DeleteFunc(found, func(f sandbox.FileInfo) bool { return !s.named(info, &f) })
	slices.SortFunc(found, func(a, b sandbox.FileInfo) int { return cmp.Compare(a.Path, b.Path) })
	if s.content == nil {
		for i := range found {
			if !s.add(searchMatch{Path: found[i].Path, Type: found[i].Type, SizeBytes: viewFile(&found[i]).SizeBytes}) {
				break
			}
		}
	} else {
		s.status("searching in files")
		s.grep(ctx, found)
	}
	if ctx.Err() != nil {
		s.stop("20 s were over")
	}
	if s.full != "" {
		s.res.Truncated, s.res.Hint = true, s.full+"; search again with a narrower path or name"
	}
	return &s.res, nil
}

func (s *search) stop(why string) {
	if s.full == "" {
		s.full = why
	}
}

// named reports whether an entry's path below the root matches the glob.
func (s *search) named(root, f *sandbox.FileInfo) bool {
	if s.name == nil {
		return true
	}
	below := strings.TrimPrefix(strings.TrimPrefix(f.Path, root.Path), "/")
	if below == "" {
		below = path.Base(f.Path)
	}
	return s.name.MatchString(below)
}

// walk lists what is below a directory, level by level. It skips directories that
// cannot be read, and fails if root cannot.
func (s *search) walk(ctx context.Context, root string) ([]sandbox.FileInfo, error) {
	s.status("looking for files")
	var found []sandbox.FileInfo
	level := []string{root}
	for depth := 0; len(level) > 0; depth++ {
		var next []string
		for dirs := range slices.Chunk(level, searchAtOnce) {
			lists := make([][]sandbox.FileInfo, len(dirs))
			var g errgroup.Group
			for i, dir := range dirs {
				g.Go(func() error {
					var err error
					lists[i], err = s.list(ctx, dir, maxSearchFiles-len(found))
					return err
				})
			}
			if err := g.Wait(); err != nil && depth == 0 {
				return nil, err
			}
			for _, list := range lists {
				found = append(found, list...)
				next = append(next, below(list)...)
			}
			if len(found) >= maxSearchFiles {
				s.stop("there are over 20,000 files and directories")
				return found, nil
			}
			if ctx.Err() != nil { // run reports it
				return found, nil
			}
		}
		level = next
	}
	return found, nil
}

// below returns the directories of a list that are searched.
func below(list []sandbox.FileInfo) (dirs []string) {
	for i := range list {
		if f := &list[i]; f.Type == sandbox.TypeDirectory && !slices.Contains(skippedNames, f.Name) && !slices.Contains(skippedPaths, f.Path) {
			dirs = append(dirs, f.Path)
		}
	}
	return dirs
}

// list returns the entries of a directory, at most a page more than limit.
func (s *search) list(ctx context.Context, dir string, limit int) ([]sandbox.FileInfo, error) {
	var all []sandbox.FileInfo
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		list, err := s.svc.ListFiles(ctx, s.sandbox, sandbox.ListFilesRequest{Path: dir, Depth: 1, Page: page})
		if err != nil {
			return all, err
		}
		all = append(all, list.Items...)
		if page.Cursor = list.NextCursor; page.Cursor == "" || len(all) >= limit {
			return all, nil
		}
	}
}

// lines are the matching lines of a file.
type lines struct {
	matches []searchMatch
	read    int64
	skipped bool
}

// grep searches the contents of files, some concurrently, and adds the matches in the
// order of the files.
func (s *search) grep(ctx context.Context, files []sandbox.FileInfo) {
	files = slices.DeleteFunc(files, func(f sandbox.FileInfo) bool { return f.Type != sandbox.TypeFile })
	var total int64
	for part := range slices.Chunk(files, searchAtOnce) {
		if total >= maxSearchBytes {
			s.stop("64 MiB were read")
		}
		if s.full != "" || ctx.Err() != nil {
			return
		}
		found := make([]lines, len(part))
		var g errgroup.Group
		for i := range part {
			g.Go(func() error {
				found[i] = s.grepFile(ctx, &part[i])
				return nil
			})
		}
		_ = g.Wait() // none fails: a file that cannot be read is counted
		for _, l := range found {
			total += l.read
			if l.skipped {
				s.res.Skipped++
			}
			for _, m := range l.matches {
				if !s.add(m) {
					return
				}
			}
		}
	}
}

// grepFile searches one file for at most one match more than is wanted.
func (s *search) grepFile(ctx context.Context, f *sandbox.FileInfo) lines {
	if f.Size > maxSearchRead {
		return lines{skipped: true}
	}
	r, err := s.svc.ReadFile(ctx, s.sandbox, sandbox.ReadFileRequest{Path: f.Path, Limit: maxSearchRead})
	if err != nil {
		return lines{skipped: true}
	}
	data, err := io.ReadAll(io.LimitReader(r, maxSearchRead))
	if err = errors.Join(err, r.Close()); err != nil || bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 {
		return lines{read: int64(len(data)), skipped: true}
	}
	out := lines{read: int64(len(data))}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		line = bytes.TrimRight(line, "\r\n")
		at := s.content.FindIndex(line)
		if at == nil {
			continue
		}
		out.matches = append(out.matches, searchMatch{Path: f.Path, Type: f.Type, SizeBytes: f.Size, Line: n, Text: around(line, at[0])})
		if len(out.matches) > s.limit {
			break
		}
	}
	return out
}

// around returns a line, or the part of it around a match.
func around(line []byte, at int) string {
	from, to := 0, len(line)
	if to > maxSearchLine {
		from = max(0, min(at-maxSearchLine/3, to-maxSearchLine))
		to = from + maxSearchLine
	}
	shown, _ := clean(clip.TrimEnd(clip.TrimStart(line[from:to])))
	return shown
}

// add adds a match, and reports whether there was room for it.
func (s *search) add(m searchMatch) bool {
	size := len(m.Path) + len(m.Text) + 80
	if len(s.res.Matches) >= s.limit || s.size+size > maxResultBytes {
		s.stop(fmt.Sprintf("there are more than %d matches", len(s.res.Matches)))
		return false
	}
	s.size += size
	s.res.Matches = append(s.res.Matches, m)
	return true
}

func (r *searchResult) text(content bool) string {
	var b strings.Builder
	for _, m := range r.Matches {
		switch {
		case content:
			fmt.Fprintf(&b, "%s:%d: %s\n", showPath(m.Path), m.Line, m.Text)
		case m.Type == sandbox.TypeDirectory:
			fmt.Fprintf(&b, "%s/\n", showPath(m.Path))
		default:
			fmt.Fprintf(&b, "%s (%s)\n", showPath(m.Path), plural(m.SizeBytes, "byte"))
		}
	}
	if len(r.Matches) == 0 {
		fmt.Fprintf(&b, "No matches among %s.\n", plural(int64(r.Searched), "path"))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "[%s not searched: binary, over 1 MiB or not readable]\n", plural(int64(r.Skipped), "file"))
	}
	field(&b, "hint: %s\n", r.Hint)
	return b.String()
}

// globRegexp converts a glob to a regular expression, "" to nil. * and ? match within a
// name, ** matches several names, {a,b} is an alternative. A glob without a slash matches
// the last part of a path. RE2 matches in linear time, whatever the glob: a backtracking
// matcher would not.
func globRegexp(glob string, ignoreCase bool) (*regexp.Regexp, error) {
	if glob == "" {
		return nil, nil
	}
	var b strings.Builder
	if ignoreCase {
		b.WriteString("(?i)")
	}
	b.WriteString("^")
	rest := strings.TrimPrefix(strings.TrimPrefix(glob, "./"), "/")
	if !strings.Contains(rest, "/") {
		b.WriteString("(?:.*/)?")
	}
	depth := 0
	for rest != "" {
		step := 1
		switch {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString("(?:.*/)?")
			step = 3
		case strings.HasPrefix(rest, "**"):
			b.WriteString(".*")
			step = 2
		case rest[0] == '*':
			b.WriteString("[^/]*")
		case rest[0] == '?':
			b.WriteString("[^/]")
		case rest[0] == '{':
			b.WriteString("(?:")
			depth++
		case rest[0] == '}' && depth > 0:
			b.WriteString(")")
			depth--
		case rest[0] == ',' && depth > 0:
			b.WriteString("|")
		case rest[0] == '[' && strings.IndexByte(rest, ']') > 1:
			step = strings.IndexByte(rest, ']') + 1
			class := strings.ReplaceAll(rest[1:step-1], `\`, `\\`)
			if strings.HasPrefix(class, "!") {
				class = "^/" + class[1:]
			}
			b.WriteString("[" + strings.ReplaceAll(class, "[", `\[`) + "]")
		default:
			_, step = utf8.DecodeRuneInString(rest)
			b.WriteString(regexp.QuoteMeta(rest[:step]))
		}
		rest = rest[step:]
	}
	b.WriteString("$")
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, invalid("file_search: name is not a glob; use *, ?, **, [abc] and {a,b}, as in src/**/*.{ts,tsx}")
	}
	return re, nil
}
