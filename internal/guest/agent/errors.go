package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// fail makes an error for the caller: one sentence that says what to do next.
func fail(code connect.Code, format string, args ...any) *connect.Error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// reasonHeader carries a [sandbox.Reason] with an error.
const reasonHeader = "cove-reason"

// failFor is fail with a reason that programs can check.
func failFor(reason sandbox.Reason, code connect.Code, format string, args ...any) *connect.Error {
	err := fail(code, format, args...)
	err.Meta().Set(reasonHeader, string(reason))
	return err
}

func invalid(format string, args ...any) *connect.Error {
	return fail(connect.CodeInvalidArgument, format, args...)
}

// cancelled makes the error for a caller that has gone away or has run out of time.
func cancelled(ctx context.Context) *connect.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fail(connect.CodeDeadlineExceeded, "the call ran out of time")
	}
	return fail(connect.CodeCanceled, "the call was cancelled")
}

// fileError describes the failure of doing something to path. An error that is
// already meant for the caller is returned as it is.
func fileError(doing, path string, err error) *connect.Error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	path = strings.ToValidUTF8(path, "\uFFFD")
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.ENOENT:
		return fail(connect.CodeNotFound, "%s does not exist; check the path, or list its directory", path)
	case unix.EEXIST:
		return fail(connect.CodeAlreadyExists, "%s already exists; choose another path or allow overwriting", path)
	case unix.EACCES, unix.EPERM:
		return fail(connect.CodePermissionDenied, "the sandbox does not permit to %s %s; use a path that you own", doing, path)
	case unix.EROFS:
		return fail(connect.CodePermissionDenied, "%s is on a read-only file system; use a path such as /workspace or /tmp", path)
	case unix.ENOTDIR:
		return invalid("%s, or a part of its path, is not a directory; check the path", path)
	case unix.EISDIR:
		return invalid("%s is a directory; give the path of a file", path)
	case unix.ELOOP:
		return invalid("%s runs through too many symbolic links; give the path of the real file", path)
	case unix.ENAMETOOLONG:
		return invalid("the path or a name in it is too long; names have at most 255 bytes")
	case unix.EINVAL:
		return invalid("cannot %s %s: the operation does not apply to it", doing, path)
	case unix.ENXIO, unix.ENODEV:
		return invalid("%s is not a regular file", path)
	case unix.ENOTEMPTY:
		return fail(connect.CodeFailedPrecondition, "%s is a directory that is not empty; ask for it recursively, or empty it first", path)
	case unix.EBUSY, unix.ETXTBSY:
		return fail(connect.CodeFailedPrecondition, "%s is in use or a mount point, so it cannot be replaced or removed", path)
	case unix.ENOSPC, unix.EDQUOT:
		return failFor(sandbox.ReasonDiskFull, connect.CodeResourceExhausted, "the sandbox's disk is full; delete files or use a sandbox with more disk")
	case unix.EFBIG:
		return fail(connect.CodeResourceExhausted, "%s would be larger than the file system allows", path)
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return fail(connect.CodeResourceExhausted, "the sandbox has no memory or file handles left; end processes in it and try again")
	}
	if errors.Is(err, fs.ErrClosed) {
		return fail(connect.CodeAborted, "the call was interrupted while working on %s; try again", path)
	}
	return fail(connect.CodeInternal, "%s %s: %s", doing, path, strings.ToValidUTF8(err.Error(), "\uFFFD"))
}
