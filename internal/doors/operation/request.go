package operation

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Expand returns the path with names, escaped, in place of those in braces. A name
// that a path cannot carry is not_found, since nothing has such a name.
func (i Info) Expand(names ...string) (string, error) {
	var b strings.Builder
	rest := i.Path
	for _, name := range names {
		before, after, _ := strings.Cut(rest, "{")
		_, rest, _ = strings.Cut(after, "}")
		if name == "" || name == "." || name == ".." {
			return "", sandbox.Errorf(sandbox.CodeNotFound, "there is no %q; list what there is and use an id from there", name)
		}
		b.WriteString(before + url.PathEscape(name))
	}
	return b.String() + rest, nil
}

// metadataKey escapes "=" in a key, so that the first "=" ends the key.
var metadataKey = strings.NewReplacer("%", "%25", "=", "%3D")

// Query returns the query of a request: the fields that have the tag query and
// are not zero.
func Query(req any) url.Values {
	values := url.Values{}
	addQuery(values, reflect.ValueOf(req))
	return values
}

func addQuery(values url.Values, req reflect.Value) {
	for f, v := range req.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("query"), ",")
		switch {
		case f.Anonymous:
			addQuery(values, v)
		case name != "" && !v.IsZero():
			addParameter(values, name, v)
		}
	}
}

func addParameter(values url.Values, name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		values.Add(name, v.String())
	case reflect.Int, reflect.Int64:
		values.Add(name, strconv.FormatInt(v.Int(), 10))
	case reflect.Bool:
		values.Add(name, strconv.FormatBool(v.Bool()))
	case reflect.Slice:
		for i := range v.Len() {
			addParameter(values, name, v.Index(i))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			values.Add(name, metadataKey.Replace(key.String())+"="+value.String())
		}
	default:
		switch v := v.Interface().(type) {
		case *time.Time:
			values.Add(name, v.UTC().Format(time.RFC3339Nano))
		case *sandbox.Region:
			values.Add(name, fmt.Sprintf("%d,%d,%d,%d", v.X, v.Y, v.Width, v.Height))
		default:
			panic("no query has a " + reflect.TypeOf(v).String()) // a test encodes all requests
		}
	}
}
