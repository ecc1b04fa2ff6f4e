package toolbox

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// A session is one running shell, which is a job of Cove's. It reads the numbers of
// commands from its standard input and runs each in itself, so that directory and
// variables are kept. The output goes to files, to which programs that a command leaves
// in the background continue to write. When a command has ended, the shell says so on
// its own output.
const (
	sessionTag  = "daytona.session."
	sessionRoot = "/tmp/.cove-daytona/"
	// modes of a command: whether it gets input.
	modeWait, modeAsync = "wait", "async"
	// inputMS bounds how long input waits for a command that does not read.
	inputMS = 10_000
)

// driver is the shell's program; %s is the session's directory.
const driver = `exec 3<&0 4>&1 </dev/null >/dev/null 2>&1
__cove_end() {
  __cove_code=$?
  [ -n "$__cove_id" ] || return
  echo "$__cove_code" >"%[1]s/$__cove_id/exit"
  echo "$__cove_id $__cove_code" >&4
  __cove_id=
}
trap __cove_end EXIT
while IFS=' ' read -r __cove_id __cove_mode <&3; do
  __cove_in=/dev/null
  if [ "$__cove_mode" = async ]; then __cove_in=%[1]s/$__cove_id/in; mkfifo "$__cove_in"; fi
  { . "%[1]s/$__cove_id/command"; } <>"$__cove_in" >"%[1]s/$__cove_id/stdout" 2>"%[1]s/$__cove_id/stderr" 3<&- 4>&-
  __cove_end
done`

func (p *plane) sessionRoutes(rt *answer.Router) {
	rt.On("POST /process/session", decoded(p.createSession))
	rt.On("GET /process/session", p.listSessions)
	rt.On("GET /process/session/{id}", p.getSession)
	rt.On("GET /process/session/entrypoint", unserved)
	rt.On("GET /process/session/entrypoint/logs", unserved)
	rt.On("DELETE /process/session/{id}", p.deleteSession)
	rt.On("POST /process/session/{id}/exec", decoded(p.execSession))
	rt.On("GET /process/session/{id}/command/{command}", p.getCommand)
	rt.On("GET /process/session/{id}/command/{command}/logs", p.getLogs)
	rt.On("POST /process/session/{id}/command/{command}/input", decoded(p.sendInput))
}

// unserved refuses the session of an image's entrypoint: templates have none.
func unserved(_ http.ResponseWriter, r *http.Request) error {
	return answer.Unserved(r.Method + " " + r.URL.Path)
}

// session is the shell of a session and its directory.
type session struct {
	id, dir string
	job     *sandbox.Job
}

// dirOf returns the directory of a session; its id can be any text.
func dirOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return sessionRoot + hex.EncodeToString(sum[:12])
}

// sessionCommand is a command of a session as clients know it.
type sessionCommand struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode,omitempty"`
}

type sessionInfo struct {
	SessionID string           `json:"sessionId"`
	Commands  []sessionCommand `json:"commands"`
}

// findSession returns a session, whose shell may have ended.
func (p *plane) findSession(r *http.Request, id string) (*session, error) {
	box := boxOf(r).ID
	job, err := p.tagged(r.Context(), box, sessionTag, id)
	if err != nil {
		return nil, err
	}
	if job != nil {
		// The directory of a session that was deleted is gone.
		if _, err = p.svc.StatFile(r.Context(), box, dirOf(id)); err == nil {
			return &session{id, dirOf(id), job}, nil
		}
		if !notFound(err) {
			return nil, err
		}
	}
	return nil, missing("session %.128s not found", id)
}

func (p *plane) session(r *http.Request) (*session, error) {
	return p.findSession(r, r.PathValue("id"))
}

type sessionBody struct {
	SessionID string `json:"sessionId"`
}

func (p *plane) createSession(w http.ResponseWriter, r *http.Request, body *sessionBody) error {
	if err := checkID(body.SessionID); err != nil {
		return err
	}
	_, err := p.findSession(r, body.SessionID)
	if err == nil {
		return sandbox.Errorf(sandbox.CodeConflict, "session %.128s is there already; choose another id", body.SessionID)
	}
	if answer.Of(err).Status != http.StatusNotFound {
		return err
	}
	box, dir := boxOf(r).ID, dirOf(body.SessionID)
	if _, err := p.svc.MakeDir(r.Context(), box, sandbox.MakeDirRequest{Path: dir, Mode: "0700"}); err != nil {
		return err
	}
	_, err = p.svc.Exec(sandbox.WithFollowed(r.Context()), box, sandbox.ExecRequest{
		Shell: fmt.Sprintf(driver, dir), Background: true, OpenStdin: true, Tag: sessionTag + body.SessionID,
	}, nil)
	if err != nil {
		p.discard(r.Context(), box, dir)
		return err
	}
	return done(w, http.StatusCreated)
}

// discard removes a directory of a session that came to nothing.
func (p *plane) discard(ctx context.Context, box, dir string) {
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := p.svc.DeleteFile(ctx, box, dir, true); err != nil && !notFound(err) {
		p.log.DebugContext(ctx, "remove a directory of a session", "sandbox", box, "directory", dir, "error", err)
	}
}

// listing prints the commands of a session, each as three texts that end with NUL.
const listing = `cd "$1" || exit; for c in *; do [ -f "$c/command" ] || continue
printf '%s\0' "$c"; cat "$c/command"; printf '\0'; cat "$c/exit" 2>/dev/null; printf '\0'; done`

// commands lists the commands of a session in their order.
func (p *plane) commands(ctx context.Context, s *session) ([]sessionCommand, error) {
	out, err := p.tool(ctx, s.job.SandboxID, sandbox.ExecRequest{Command: []string{"/bin/sh", "-c", listing, "sh", s.dir}, WorkDir: "/"})
	if err != nil {
		return nil, err
	}
	texts := strings.Split(out.stdout, "\x00")
	all := []sessionCommand{}
	for i := 0; i+3 <= len(texts); i += 3 {
		all = append(all, sessionCommand{texts[i], strings.ToValidUTF8(strings.TrimSuffix(texts[i+1], "\n"), "\uFFFD"), s.exitCode(texts[i+2])})
	}
	return all, nil
}

// exitCode reads the exit code of a command. It is nil while the command runs, and if
// its shell was killed.
func (s *session) exitCode(text string) *int {
	if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		return &n
	}
	if s.job.State == sandbox.JobExited {
		return &s.job.ExitCode
	}
	return nil
}

func (p *plane) listSessions(w http.ResponseWriter, r *http.Request) error {
	all, seen := []sessionInfo{}, map[string]bool{}
	for job, err := range sandbox.Each(r.Context(), sandbox.Of(boxOf(r).ID, p.svc.ListJobs)) {
		if err != nil {
			return err
		}
		id, is := strings.CutPrefix(job.Tag, sessionTag)
		if !is || seen[id] {
			continue
		}
		seen[id] = true
		s, err := p.findSession(r, id)
		if err != nil {
			if answer.Of(err).Status == http.StatusNotFound {
				continue
			}
			return err
		}
		commands, err := p.commands(r.Context(), s)
		if err != nil {
			return err
		}
		all = append(all, sessionInfo{id, commands})
	}
	return ok(w, all)
}

func (p *plane) getSession(w http.ResponseWriter, r *http.Request) error {
	s, err := p.session(r)
	if err != nil {
		return err
	}
	commands, err := p.commands(r.Context(), s)
	if err != nil {
		return err
	}
	return ok(w, sessionInfo{s.id, commands})
}

func (p *plane) deleteSession(w http.ResponseWriter, r *http.Request) error {
	s, err := p.session(r)
	if err != nil {
		return err
	}
	_, err = p.svc.SignalJob(r.Context(), s.job.SandboxID, s.job.ID, "KILL", 0)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		return err
	}
	if err := p.svc.DeleteFile(r.Context(), s.job.SandboxID, s.dir, true); err != nil && !notFound(err) {
		return err
	}
	return done(w, http.StatusNoContent)
}

type sessionExecBody struct {
	Command  string `json:"command"`
	RunAsync bool   `json:"runAsync"`
	Async    bool   `json:"async"`
	// NoEcho keeps input out of the output, which is always the case here.
	NoEcho bool `json:"suppressInputEcho"`
}

// logs are the output of a command so far.
type logs struct {
	Output string `json:"output"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

type sessionResult struct {
	CmdID    string `json:"cmdId"`
	ExitCode int    `json:"exitCode"`
	logs
}

func (p *plane) execSession(w http.ResponseWriter, r *http.Request, body *sessionExecBody) error {
	if strings.TrimSpace(body.Command) == "" {
		return answer.Invalid("the command is empty; give one")
	}
	s, err := p.session(r)
	if err != nil {
		return err
	}
	if s.job.State != sandbox.JobRunning {
		return errEnded(s.id)
	}
	mode := modeWait
	if body.RunAsync || body.Async {
		mode = modeAsync
	}
	id, err := p.begin(r.Context(), s, body.Command, mode)
	if err != nil {
		return err
	}
	if mode == modeAsync {
		answer.JSON(w, http.StatusAccepted, map[string]string{"cmdId": id})
		return nil
	}
	code, err := p.wait(r.Context(), s, id)
	if err != nil {
		return err
	}
	l, err := p.readLogs(r.Context(), s, id)
	if err != nil {
		return err
	}
	return ok(w, sessionResult{id, code, *l})
}

func errEnded(id string) error {
	return answer.Fail(http.StatusGone, answer.SessionEnded, "the shell of session %.128s has ended; delete the session and make another", id)
}

// begin gives a command to the shell, and returns its id. Ids sort by their time.
func (p *plane) begin(ctx context.Context, s *session, command, mode string) (string, error) {
	var random [4]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := fmt.Sprintf("cmd-%016x-%x", time.Now().UnixNano(), random)
	box, dir := s.job.SandboxID, s.dir+"/"+id
	_, err := p.svc.WriteFile(ctx, box, sandbox.WriteFileRequest{Path: dir + "/command", MakeParents: true}, strings.NewReader(command+"\n"))
	if err != nil {
		return "", err
	}
	err = p.svc.WriteInput(ctx, box, s.job.ID, []byte(id+" "+mode+"\n"), false)
	if sandbox.CodeOf(err) == sandbox.CodeConflict { // the shell, which reads no more, has not got the command
		p.discard(ctx, box, dir)
		err = errEnded(s.id)
	}
	return id, err
}

// wait waits until the shell says that a command has ended, and returns its exit code.
func (p *plane) wait(ctx context.Context, s *session, id string) (int, error) {
	code, found := 0, false
	stop := fmt.Errorf("command %s has ended", id)
	var line []byte
	job, err := p.svc.Attach(ctx, s.job.SandboxID, s.job.ID, sandbox.AttachRequest{StdoutOffset: s.job.StdoutBytes}, func(e sandbox.JobEvent) error {
		if e.Stream != sandbox.Stdout {
			return nil
		}
		for _, c := range e.Data {
			if c != '\n' {
				if len(line) < maxID {
					line = append(line, c)
				}
				continue
			}
			if name, text, _ := strings.Cut(string(line), " "); name == id {
				code, _ = strconv.Atoi(text)
				found = true
				return stop
			}
			line = line[:0]
		}
		return nil
	})
	switch {
	case found:
		return code, nil
	case err != nil:
		return 0, err
	}
	return job.ExitCode, nil // the shell was killed
}

// command returns the session and the id of a command that a request names.
func (p *plane) command(r *http.Request) (*session, string, error) {
	s, err := p.session(r)
	if err != nil {
		return nil, "", err
	}
	id := r.PathValue("command")
	if !strings.HasPrefix(id, "cmd-") || !sandbox.ValidJobID(id) {
		return nil, "", noCommand(id)
	}
	if _, err := p.svc.StatFile(r.Context(), s.job.SandboxID, s.dir+"/"+id+"/command"); notFound(err) {
		return nil, "", noCommand(id)
	} else if err != nil {
		return nil, "", err
	}
	return s, id, nil
}

func noCommand(id string) error { return missing("command %.128s not found", id) }

func (p *plane) getCommand(w http.ResponseWriter, r *http.Request) error {
	s, id, err := p.command(r)
	if err != nil {
		return err
	}
	command, err := p.readText(r.Context(), s.job.SandboxID, s.dir+"/"+id+"/command")
	if err != nil {
		return err
	}
	code, err := p.readText(r.Context(), s.job.SandboxID, s.dir+"/"+id+"/exit")
	if err != nil {
		return err
	}
	return ok(w, sessionCommand{id, strings.TrimSuffix(command, "\n"), s.exitCode(code)})
}

// readText reads a file of a session. A missing file counts as empty.
func (p *plane) readText(ctx context.Context, box, path string) (string, error) {
	file, err := p.svc.ReadFile(ctx, box, sandbox.ReadFileRequest{Path: path})
	if notFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	var t text
	data, err := io.ReadAll(io.LimitReader(file, maxOutput+1))
	t.add(data)
	t.left += max(0, file.Info.Size-int64(len(data)))
	return t.done(), err
}

func (p *plane) readLogs(ctx context.Context, s *session, id string) (*logs, error) {
	var l logs
	var err error
	if l.Stdout, err = p.readText(ctx, s.job.SandboxID, s.dir+"/"+id+"/stdout"); err != nil {
		return nil, err
	}
	l.Stderr, err = p.readText(ctx, s.job.SandboxID, s.dir+"/"+id+"/stderr")
	l.Output = l.Stdout + l.Stderr
	return &l, err
}

func (p *plane) getLogs(w http.ResponseWriter, r *http.Request) error {
	s, id, err := p.command(r)
	if err != nil {
		return err
	}
	if isSocket(r) {
		p.followLogs(w, r, s, id)
		return nil
	}
	l, err := p.readLogs(r.Context(), s, id)
	if err != nil {
		return err
	}
	return ok(w, l)
}

type inputBody struct {
	Data string `json:"data"`
}

// sendInput writes to the standard input of a command.
func (p *plane) sendInput(w http.ResponseWriter, r *http.Request, body *inputBody) error {
	s, id, err := p.command(r)
	if err != nil {
		return err
	}
	code, err := p.readText(r.Context(), s.job.SandboxID, s.dir+"/"+id+"/exit")
	if err != nil {
		return err
	}
	if s.exitCode(code) != nil {
		return answer.Fail(http.StatusGone, answer.CommandCompleted, "command %s has ended and takes no input", id)
	}
	fifo := s.dir + "/" + id + "/in"
	out, err := p.tool(r.Context(), s.job.SandboxID, sandbox.ExecRequest{
		Command: []string{"/bin/sh", "-c", `test -p "$1" || exit 9; exec cat >>"$1"`, "sh", fifo}, Stdin: []byte(body.Data), WorkDir: "/", TimeoutMS: inputMS,
	})
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeTimeout:
		return sandbox.Errorf(sandbox.CodeTimeout, "command %s does not read its input; send the rest when it does", id)
	case err != nil:
		return err
	case out.code == 9:
		return sandbox.Errorf(sandbox.CodeConflict, "command %s takes no input yet, or at all; run it with runAsync", id)
	case out.code != 0:
		return fmt.Errorf("write the input of a command: %s", out.stderr)
	}
	return done(w, http.StatusNoContent)
}
