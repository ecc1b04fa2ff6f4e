package objects

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// requestTimeout limits one request. Objects have a few megabytes at most.
const requestTimeout = 2 * time.Minute

// bucket is a bucket of an S3-compatible store.
type bucket struct {
	client *minio.Client
	at     Address
}

func openS3(a Address, opts Options) (Bucket, error) {
	endpoint := cmp.Or(opts.Endpoint, opts.Env("AWS_ENDPOINT_URL_S3"), opts.Env("AWS_ENDPOINT_URL"))
	own := endpoint != ""
	u, err := ParseEndpoint(cmp.Or(endpoint, "https://s3.amazonaws.com"))
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if own || opts.PathStyle {
		lookup = minio.BucketLookupPath
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   32,
		DisableCompression:    true, // objects are compressed already, and a bomb is not
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewChainCredentials(providers(opts.Env, own)), Secure: u.Scheme == "https",
		Region:       cmp.Or(opts.Region, opts.Env("AWS_REGION"), opts.Env("AWS_DEFAULT_REGION"), "us-east-1"),
		BucketLookup: lookup, Transport: transport,
		MaxRetries: 1, // callers decide about retries
	})
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	return &bucket{client: client, at: a}, nil
}

// providers returns where credentials come from: the environment, the files of AWS, and
// on Amazon's machines and containers their role.
func providers(env func(string) string, own bool) []credentials.Provider {
	list := []credentials.Provider{
		&environment{env: env},
		&credentials.FileAWSCredentials{Filename: env("AWS_SHARED_CREDENTIALS_FILE"), Profile: env("AWS_PROFILE")},
	}
	if !own {
		list = append(list, &credentials.IAM{Client: &http.Client{Timeout: 10 * time.Second}})
	}
	return list
}

// environment has credentials of the environment.
type environment struct {
	credentials.EnvAWS
	env func(string) string
}

func (e *environment) Retrieve() (credentials.Value, error) { return e.RetrieveWithCredContext(nil) }

func (e *environment) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	v := credentials.Value{
		AccessKeyID: e.env("AWS_ACCESS_KEY_ID"), SecretAccessKey: e.env("AWS_SECRET_ACCESS_KEY"),
		SessionToken: e.env("AWS_SESSION_TOKEN"), SignerType: credentials.SignatureV4,
	}
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return credentials.Value{}, errors.New("there are no credentials in the environment")
	}
	return v, nil
}

func (e *environment) IsExpired() bool { return false }

// ParseEndpoint checks the address of an S3-compatible store.
func ParseEndpoint(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("the endpoint of the object store must be https://HOST or http://HOST, with a port if needed")
	}
	return u, nil
}

func (b *bucket) String() string { return b.at.String() }

// key returns an object's key in the bucket.
func (b *bucket) key(name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	return b.prefixed(name), nil
}

func (b *bucket) prefixed(name string) string {
	if b.at.Prefix == "" {
		return name
	}
	return b.at.Prefix + "/" + name
}

func (b *bucket) Put(ctx context.Context, name string, data []byte) error {
	key, err := b.key(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// Without TLS the client would sign content in pieces. A store may leave the piece that
	// ends an empty object unread, and take it for the next request. What callers store is
	// authenticated anyway.
	_, err = b.client.PutObject(ctx, b.at.Name, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true, SendContentMd5: true, DisableContentSha256: true,
	})
	return b.explain("store an object", err)
}

func (b *bucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	key, err := b.key(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The core's call makes one request; the client's object makes several.
	r, info, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.at.Name, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.explain("read an object", err)
	}
	defer r.Close()
	data, err := readAtMost(r, limit)
	if err == nil && info.Size >= 0 && int64(len(data)) != info.Size {
		err = fmt.Errorf("the answer ended after %d of %d bytes", len(data), info.Size)
	}
	if err != nil {
		return nil, b.explain("read an object", err)
	}
	return data, nil
}

func (b *bucket) Stat(ctx context.Context, name string) (Info, error) {
	key, err := b.key(name)
	if err != nil {
		return Info{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := b.client.StatObject(ctx, b.at.Name, key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, b.explain("look for an object", err)
	}
	return Info{Name: name, Size: info.Size, Modified: info.LastModified}, nil
}

func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		key, err := b.key(strings.TrimSuffix(prefix, "/"))
		if err != nil {
			yield(Info{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// The whole list may take long, the next object may not.
		late := time.AfterFunc(requestTimeout, cancel)
		defer late.Stop()
		for o := range b.client.ListObjectsIter(ctx, b.at.Name, minio.ListObjectsOptions{Prefix: key + "/", Recursive: true}) {
			late.Reset(requestTimeout)
			if o.Err != nil {
				yield(Info{}, b.explain("list objects", o.Err))
				return
			}
			name, ok := strings.CutPrefix(o.Key, b.prefixed(""))
			if !ok || checkName(name) != nil || !strings.HasPrefix(name, prefix) {
				continue
			}
			if !yield(Info{Name: name, Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
		// A list that was cut off must not look like a whole one.
		if err := ctx.Err(); err != nil {
			yield(Info{}, fmt.Errorf("list objects: %w", err))
		}
	}
}

func (b *bucket) Delete(ctx context.Context, names []string) error {
	// One by one: to remove several at once needs a checksum header that not all stores
	// agree about.
	for _, name := range names {
		key, err := b.key(name)
		if err != nil {
			return err
		}
		err = func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return b.client.RemoveObject(ctx, b.at.Name, key, minio.RemoveObjectOptions{})
		}()
		if err = b.explain("remove an object", err); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

// explain makes the errors of the client those of the contract.
func (b *bucket) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	switch refused, _ := errors.AsType[minio.ErrorResponse](err); refused.Code {
	case minio.NoSuchKey, "NotFound":
		return ErrNotFound
	case minio.NoSuchBucket:
		return fmt.Errorf("%w: %s", ErrNoBucket, b.at.Name)
	case minio.AccessDenied, "InvalidAccessKeyId", "SignatureDoesNotMatch":
		return fmt.Errorf("%s: the object store refuses the credentials (%s)", what, refused.Code)
	}
	return fmt.Errorf("%s: %w", what, err)
}
