// Command netload runs inside a sandbox, or beside one, and prints how long
// things on the network take, in nanoseconds, one a line.
//
//	netload requests N URL [CA-FILE]   requests over one connection
//	netload connections N URL [CA]     requests over a connection each
//	netload connect N HOST:PORT        connections, one after another
//	netload flood N AT-ONCE HOST:PORT  N connections, so many at a time: one time for all
//	netload serve ADDRESS              answers every request, for ever
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return http.ListenAndServe(args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	}
	if len(args) < 3 {
		return fmt.Errorf("unexpected arguments %q", args)
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "requests", "connections":
		client, err := newClient(args[0] == "connections", args[3:])
		if err != nil {
			return err
		}
		return each(n, func() error { return get(client, args[2]) })
	case "connect":
		return each(n, func() error { return touch(args[2]) })
	case "flood":
		atOnce, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return flood(n, atOnce, args[3])
	}
	return fmt.Errorf("unexpected arguments %q", args)
}

// each times n runs, after one that does not count.
func each(n int, do func() error) error {
	for i := range n + 1 {
		began := time.Now()
		if err := do(); err != nil {
			return err
		}
		if i > 0 {
			fmt.Println(time.Since(began).Nanoseconds())
		}
	}
	return nil
}

func newClient(once bool, ca []string) (*http.Client, error) {
	tr := &http.Transport{DisableKeepAlives: once, TLSClientConfig: &tls.Config{}, ForceAttemptHTTP2: true}
	if len(ca) > 0 {
		text, err := os.ReadFile(ca[0])
		if err != nil {
			return nil, err
		}
		tr.TLSClientConfig.RootCAs = x509.NewCertPool()
		tr.TLSClientConfig.RootCAs.AppendCertsFromPEM(text)
	}
	return &http.Client{Transport: tr}, nil
}

func get(client *http.Client, url string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token := os.Getenv("BENCH_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// touch opens a connection to a server that echoes, and uses it once.
func touch(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func flood(n, atOnce int, addr string) error {
	var wg sync.WaitGroup
	errs := make(chan error, atOnce)
	began := time.Now()
	for i := range atOnce {
		wg.Go(func() {
			for range (n + atOnce - 1 - i) / atOnce {
				if err := touch(addr); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	fmt.Println(time.Since(began).Nanoseconds())
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}
