package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/cove-sh/cove/internal/doors/preview"
	"github.com/cove-sh/cove/sandbox"
)

// useTLS makes a server speak HTTPS where it is told to: on listeners that are
// served with ServeTLS.
func (s *Server) useTLS(h *http.Server, previews *preview.Proxy) error {
	switch cfg := &s.cfg.TLS; {
	case cfg.Cert != "":
		files := &certificateFiles{cert: cfg.Cert, key: cfg.Key, log: s.log}
		if err := files.load(); err != nil {
			return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the certificate %s with the key %s cannot be used (%v); correct tls.cert and tls.key", cfg.Cert, cfg.Key, err))
		}
		// The protocols are named since the server serves the socket too: package
		// http sets HTTP/2 up once, by what it finds here when it first serves
		// anything.
		h.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.get, NextProtos: []string{"h2", "http/1.1"}}
	case len(cfg.ACME.Hosts) > 0:
		manager, err := s.acme(previews)
		if err != nil {
			return err
		}
		h.TLSConfig = manager.TLSConfig()
		h.TLSConfig.MinVersion = tls.VersionTLS12
	}
	return nil
}

// acme returns what gets certificates for the server's names and for previews
// that are there. Anybody can ask for any name, and an authority counts what it
// is asked.
func (s *Server) acme(previews *preview.Proxy) (*autocert.Manager, error) {
	cfg := &s.cfg.TLS.ACME
	cache := cfg.Cache
	if cache == "" {
		cache = filepath.Join(s.cfg.StateDir, "acme")
	}
	if err := prepareCertificates(cache); err != nil {
		return nil, err
	}
	m := &autocert.Manager{
		Prompt: autocert.AcceptTOS,
		Cache:  autocert.DirCache(cache),
		Email:  cfg.Email,
		HostPolicy: func(ctx context.Context, host string) error {
			host = strings.ToLower(host)
			if slices.Contains(cfg.Hosts, host) || previews.Exists(ctx, host) {
				return nil
			}
			return fmt.Errorf("%q is no name of this server", host)
		},
	}
	if cfg.Directory != "" {
		m.Client = &acme.Client{DirectoryURL: cfg.Directory}
	}
	return m, nil
}

// prepareCertificates makes the directory in which keys and certificates are
// kept if it is missing, and refuses one that others may write to: a certificate
// of theirs would be served, with a key that they know.
func prepareCertificates(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the directory %s cannot be created (%v); correct tls.acme.cache", dir, err))
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the directory of certificates: %w", err)
	}
	if uid := ownerOf(info); uid != os.Geteuid() && uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return sandbox.Errorf(sandbox.CodeInvalid, "other users may put certificates into %s (user %d, mode %04o); give it to this user with mode 0700, or choose another with tls.acme.cache", dir, uid, info.Mode().Perm())
	}
	return nil
}

// reloadEvery is how often certificate files are looked at.
const reloadEvery = 10 * time.Second

// certificateFiles is a certificate that others renew in its place.
type certificateFiles struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	changed [2]time.Time
	looked  time.Time
}

// get returns the certificate, the new one if there is one.
func (c *certificateFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	due := time.Since(c.looked) > reloadEvery
	c.mu.Unlock()
	if due {
		if err := c.load(); err != nil {
			// It may be half written; the one before is good as long as it lasts.
			c.log.Warn("read the TLS certificate", "error", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current, nil
}

func (c *certificateFiles) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked = time.Now()
	var changed [2]time.Time
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		changed[i] = info.ModTime()
	}
	if c.current != nil && changed == c.changed {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.current, c.changed = &pair, changed
	return nil
}
