package agent

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSSHFiles bounds how many files in the SSH server's directory are inspected.
const maxSSHFiles = 10_000

const ed25519Key = "ssh_host_ed25519_key"

// renewHostKeys removes the SSH host keys of the image, which all its sandboxes would
// share. If there were any, it makes a new one of type ed25519, so that an SSH server
// works in each sandbox with a key of its own; making one is fast enough for every
// creation. "ssh-keygen -A" adds keys of the other types.
func renewHostKeys(dir string) error {
	at, err := openEntry(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer at.close()
	d, err := openDir(at.dir, at.name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(maxSSHFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	fd := int(d.Fd())
	found := false
	var errs []error
	for _, name := range names {
		if isHostKey(name) {
			err := unix.Unlinkat(fd, name, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOENT) {
				continue
			}
			errs = append(errs, err)
			found = found || err == nil
		}
	}
	if found {
		errs = append(errs, makeHostKey(fd))
	}
	return errors.Join(errs...)
}

// isHostKey recognises the files of a host key: private, public, certificate.
func isHostKey(name string) bool {
	name, ok := strings.CutPrefix(name, "ssh_host_")
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".pub"), "-cert")
	return ok && strings.HasSuffix(name, "_key")
}

func makeHostKey(dir int) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	var check [4]byte
	_, _ = rand.Read(check[:])
	private, public := formatHostKey(key, binary.BigEndian.Uint32(check[:]))
	if err := (dirEntry{dir: dir, name: ed25519Key}).put(private, 0o600); err != nil {
		return err
	}
	return (dirEntry{dir: dir, name: ed25519Key + ".pub"}).put(public, 0o644)
}

// formatHostKey formats a key as OpenSSH does, without a passphrase or comment: see
// PROTOCOL.key there. check is an arbitrary number.
func formatHostKey(key ed25519.PrivateKey, check uint32) (private, public []byte) {
	const kind = "ssh-ed25519"
	pub := []byte(key.Public().(ed25519.PublicKey))
	blob := sshStrings([]byte(kind), pub)

	secret := binary.BigEndian.AppendUint32(nil, check)
	secret = binary.BigEndian.AppendUint32(secret, check)
	secret = append(secret, sshStrings([]byte(kind), pub, key, nil)...)
	for i := byte(1); len(secret)%8 != 0; i++ {
		secret = append(secret, i)
	}

	var b bytes.Buffer
	b.WriteString("openssh-key-v1\x00")
	b.Write(sshStrings([]byte("none"), []byte("none"), nil)) // cipher, key derivation, its options
	b.Write(binary.BigEndian.AppendUint32(nil, 1))           // keys
	b.Write(sshStrings(blob, secret))
	private = pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: b.Bytes()})
	return private, []byte(kind + " " + base64.StdEncoding.EncodeToString(blob) + "\n")
}

// sshStrings joins values, each after its length.
func sshStrings(values ...[]byte) (out []byte) {
	for _, v := range values {
		out = binary.BigEndian.AppendUint32(out, uint32(len(v)))
		out = append(out, v...)
	}
	return out
}
