// The program server is a real S3 server for tests, with its objects in a directory. It
// is a module of its own, so that what it is made of is none of Cove's. It prints
// a line "listening ADDRESS", among others, and ends with its standard input.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	dir := flag.String("dir", "", "directory of the buckets")
	access := flag.String("access", "", "access key")
	flag.Parse()
	address, err := freePort()
	if err != nil {
		return err
	}
	// Not every file system of a test has extended attributes.
	sidecar, err := os.MkdirTemp("", "cove-s3-meta-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(sidecar)
	metadata, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	be, err := posix.New(*dir, metadata, posix.PosixOpts{SideCarDir: sidecar, ValidateBucketNames: true})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	fmt.Println("listening", address)
	return embedgw.RunVersityGW(ctx, be, &embedgw.Config{
		RootUserAccess: *access, RootUserSecret: os.Getenv("SECRET"), Ports: []string{address},
		MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10000, KeepAlive: true, Quiet: true,
	})
}

// freePort returns a free address of loopback. The library cannot listen at port 0 and
// say which one it got.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
