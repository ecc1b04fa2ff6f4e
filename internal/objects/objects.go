// Package objects stores objects, which are names with bytes, in a bucket of an
// S3-compatible store or in a directory. Package objectstest is the suite that both pass.
//
// A bucket is not trusted: what comes back may be anything, of any size. Callers limit
// what they read, and check it.
package objects

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
)

// ErrNotFound means that there is no such object.
var ErrNotFound = errors.New("no such object")

// ErrTooLarge means that an object is larger than the caller takes.
var ErrTooLarge = errors.New("the object is larger than it should be")

// ErrNoBucket means that the bucket or the directory does not exist.
var ErrNoBucket = errors.New("the bucket does not exist")

// Bucket is where objects are. Its methods are safe for concurrent use, and end with
// their context. Names have at most [MaxName] bytes: elements of lower-case letters,
// digits and dashes, separated by slashes.
type Bucket interface {
	// Put stores an object, and replaces one of the same name. When it returns nil, the
	// whole object is stored and survives a power failure. After an error the object is
	// either stored or as it was before.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns an object, or [ErrNotFound]; or [ErrTooLarge] if it has more than max
	// bytes.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)
	// Stat describes an object, or returns [ErrNotFound].
	Stat(ctx context.Context, name string) (Info, error)
	// List yields all objects whose names begin with a prefix, which ends with a slash.
	// After an error it ends. Objects whose names no caller could have given are left out.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes objects, at most [MaxDelete]. Unknown ones are not an error.
	Delete(ctx context.Context, names []string) error
	// String names the bucket in messages. It has no credentials.
	String() string
}

// MaxDelete is how many objects one call can remove, MaxName how long a name can be.
const (
	MaxDelete = 1000
	MaxName   = 512
)

// Info describes an object.
type Info struct {
	Name string
	Size int64
	// Modified is when it was last stored, by the clock of the bucket.
	Modified time.Time
}

// Options say how a bucket is reached. Zero values are the usual ones: those of the
// environment, and then those of Amazon S3.
type Options struct {
	// Endpoint is the address of an S3-compatible store, such as
	// https://s3.example.com:9000. If empty, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
	Endpoint string
	// Region is the region of the bucket; if empty, AWS_REGION, AWS_DEFAULT_REGION or
	// us-east-1.
	Region string
	// PathStyle puts the bucket into the path of addresses instead of the host name. It is
	// always set with an endpoint of one's own.
	PathStyle bool
	// Env returns a variable of the environment. It must be set.
	Env func(string) string
}

// bucketName matches the names that S3 allows for buckets.
var bucketName = lazyregexp.New(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// objectName matches names of objects.
var objectName = lazyregexp.New(`^[a-z0-9-]+(/[a-z0-9-]+)*$`)

func checkName(name string) error {
	if len(name) > MaxName || !objectName.MatchString(name) {
		return fmt.Errorf("%.80q is not the name of an object", name)
	}
	return nil
}

// Address is a checked address of a bucket.
type Address struct {
	// Dir is an absolute path, or empty for a bucket of S3.
	Dir string
	// Name is the bucket's, and Prefix what the names of its objects begin with, without a
	// slash at the end.
	Name, Prefix string
}

// ParseAddress reads an address: s3://BUCKET, s3://BUCKET/PREFIX or file:///DIRECTORY. Its
// error does not quote the address, which may have a password that does not belong there.
func ParseAddress(s string) (Address, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return Address{}, errors.New("it is not an address; use s3://BUCKET/PREFIX or file:///DIRECTORY")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return Address{}, errors.New("it has more than a bucket and a prefix; credentials belong into the environment or the files of AWS")
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path):
		return Address{Dir: filepath.Clean(u.Path)}, nil
	case u.Scheme != "s3":
		return Address{}, errors.New("it must be s3://BUCKET/PREFIX or file:///DIRECTORY")
	case !bucketName.MatchString(u.Host):
		return Address{}, errors.New("the name of the bucket must have 3 to 63 lower-case letters, digits, dots and dashes")
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" && (len(prefix) > MaxName/2 || !objectPrefix.MatchString(prefix)) {
		return Address{}, errors.New("the prefix must have letters, digits, dots, dashes and underscores between its slashes")
	}
	return Address{Name: u.Host, Prefix: prefix}, nil
}

// objectPrefix matches prefixes.
var objectPrefix = lazyregexp.New(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)

// String returns the address, which has no credentials.
func (a Address) String() string {
	if a.Dir != "" {
		return "file://" + a.Dir
	}
	return strings.TrimSuffix("s3://"+a.Name+"/"+a.Prefix, "/")
}

// Open returns the bucket at an address. It does not connect.
func Open(address string, opts Options) (Bucket, error) {
	a, err := ParseAddress(address)
	if err != nil {
		return nil, err
	}
	if a.Dir != "" {
		return &directory{path: a.Dir}, nil
	}
	return openS3(a, opts)
}
