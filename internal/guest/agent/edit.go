package agent

import (
	"bytes"
	"context"
	"io"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// Edit implements [agentv1connect.AgentHandler].
func (a *Agent) Edit(_ context.Context, req *connect.Request[agentv1.EditRequest]) (*connect.Response[agentv1.EditResponse], error) {
	m := req.Msg
	path, err := a.path(m.GetPath())
	switch {
	case err != nil:
		return nil, err
	case m.GetOldText() == "":
		return nil, invalid("the text to replace is empty; give the text as it stands in the file, or write the whole file")
	case m.GetOldText() == m.GetNewText():
		return nil, invalid("the old and the new text are the same; there is nothing to change")
	}
	a.editMu.Lock()
	defer a.editMu.Unlock()
	undo := a.written.announce(path, false)
	info, n, err := editFile(path, m)
	if err != nil {
		undo()
		return nil, fileError("edit", path, err)
	}
	return connect.NewResponse(&agentv1.EditResponse{Info: a.complete(info), Replacements: int32(n)}), nil
}

func editFile(path string, m *agentv1.EditRequest) (*agentv1.FileInfo, int, error) {
	if path == "/" {
		return nil, 0, unix.EISDIR
	}
	target, err := openTarget(path)
	if err != nil {
		return nil, 0, err
	}
	defer target.close()
	data, before, err := readWhole(target, path)
	if err != nil {
		return nil, 0, err
	}
	old := []byte(m.GetOldText())
	n := bytes.Count(data, old)
	switch {
	case n == 0:
		return nil, 0, fail(connect.CodeFailedPrecondition,
			"the old text does not occur in %s; read the file and give the text exactly, with its white space", path)
	case n > 1 && !m.GetReplaceAll():
		return nil, 0, fail(connect.CodeFailedPrecondition,
			"the old text occurs %d times in %s; give more of its surroundings, or ask to replace all", n, path)
	case int64(len(data))+int64(n)*int64(len(m.GetNewText())-len(old)) > sandbox.MaxEditFileBytes:
		return nil, 0, tooLarge(path)
	}
	u := &upload{path: path, entry: target, mode: before.GetMode()}
	u.owner = account{uid: before.GetUid(), gid: before.GetGid()}
	if u.file, u.temp, err = target.createTemp(); err != nil {
		return nil, 0, err
	}
	defer u.removeTemp()
	if _, err := u.file.Write(bytes.ReplaceAll(data, old, []byte(m.GetNewText()))); err != nil {
		return nil, 0, err
	}
	now, err := target.lstat()
	if err != nil {
		return nil, 0, err
	}
	if now.Size != before.GetSize() || now.Mtim.Nano() != before.GetModifiedUnixNano() {
		return nil, 0, fail(connect.CodeAborted, "%s was changed meanwhile; read it and try again", path)
	}
	info, err := u.commit()
	return info, n, err
}

func tooLarge(path string) error {
	return fail(connect.CodeResourceExhausted,
		"%s is larger than %d bytes, which is the most that can be edited; change it with a command instead", path, sandbox.MaxEditFileBytes)
}

// readWhole reads a regular file that is not too large to edit.
func readWhole(p dirEntry, path string) ([]byte, *agentv1.FileInfo, error) {
	f, info, err := openRegular(p.dir, p.name, path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, sandbox.MaxEditFileBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > sandbox.MaxEditFileBytes {
		return nil, nil, tooLarge(path)
	}
	return data, info, nil
}
