package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// epochFile has the largest epoch of a server that has driven the node.
const epochFile = "epoch"

// admit refuses a server that another has replaced, and does not know it yet: it would end
// what the other has made here. Servers that do not count have the epoch 0.
func (i *Identity) admit(epoch int64) error {
	if epoch == 0 {
		return nil
	}
	path := filepath.Join(i.dir, epochFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("0"), nil
	}
	if err != nil {
		return err
	}
	last, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case epoch < last:
		i.log.Warn("a server was refused, because another has taken over from it", "epoch", epoch, "last", last)
		return sandbox.Errorf(sandbox.CodeForbidden, "another server has taken over from this one, and has driven the node")
	case epoch == last:
		return nil
	}
	return durable.WriteFile(path, []byte(strconv.FormatInt(epoch, 10)+"\n"))
}
