package desktop

import (
	"bytes"
	"encoding/binary"
	"hash/adler32"
	"hash/crc32"
	"hash/maphash"
	"image"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/flate"
)

const (
	// stripLines is the height of a strip, which is compressed on its own.
	stripLines = 32
	// maxCompressors bounds the processors that one picture uses.
	maxCompressors = 4
	// maxCached bounds the strips that are cached for the next picture, in bytes.
	maxCached = 2 << 20
)

// pngEncoder encodes pictures without transparency as PNG, optimized for speed: an agent
// waits for the result. Screens are mostly plain areas and text. A picture with few colours
// takes one byte per pixel. Otherwise a line is stored unchanged or as the difference from
// the line above; measurements showed this to be smaller and faster than image/png.
//
// A picture is compressed in strips, so that several processors share the work and strips
// that equal those of the last picture are not compressed again. If another program writes
// to the pixels meanwhile, as a hostile X server can, a cached strip may be wrong; that
// affects only pictures of that server's own screen. A pngEncoder is not safe for
// concurrent use.
type pngEncoder struct {
	cache map[stripKey]strip // from the last picture
}

// stripKey identifies the content of a strip.
type stripKey struct {
	indexed      bool
	width, lines int
	hash         uint64 // of the pixels
}

// strip is a compressed part of a picture, which ends at a byte boundary.
type strip struct {
	deflated []byte
	sum      uint32 // Adler-32 of the uncompressed data
	size     int    // of the uncompressed data
}

func (e *pngEncoder) encode(img *image.RGBA) []byte {
	width, height := img.Rect.Dx(), img.Rect.Dy()
	head := make([]byte, 13)
	binary.BigEndian.PutUint32(head[0:], uint32(width))
	binary.BigEndian.PutUint32(head[4:], uint32(height))
	head[8], head[9] = 8, 2 // bits per sample, RGB
	colours, indexed := indexColours(img)
	if indexed != nil {
		head[9] = 3 // indexed
	}
	strips := e.compress(img, indexed)
	size := 0
	for i := range strips {
		size += len(strips[i].deflated)
	}
	out := make(chunks, 0, size+len(colours)+128)
	out = append(out, "\x89PNG\r\n\x1a\n"...)
	out.chunk("IHDR", head)
	if indexed != nil {
		out.chunk("PLTE", colours)
	}
	at := out.begin("IDAT")
	out = append(out, 0x78, 0x01) // zlib: a window of 32 KiB, fastest
	sum := uint32(1)
	for i := range strips {
		out = append(out, strips[i].deflated...)
		sum = joinSums(sum, strips[i].sum, strips[i].size)
	}
	out = append(out, 0x03, 0x00) // an empty last block
	out = binary.BigEndian.AppendUint32(out, sum)
	out.end(at)
	out.chunk("IEND", nil)
	return out
}

// compress returns the strips of a picture and caches them.
func (e *pngEncoder) compress(img *image.RGBA, indexed []byte) []strip {
	width, height := img.Rect.Dx(), img.Rect.Dy()
	strips := make([]strip, (height+stripLines-1)/stripLines)
	keys := make([]stripKey, len(strips))
	var next atomic.Int32
	work := func() {
		var c compressor
		for {
			i := int(next.Add(1)) - 1
			if i >= len(strips) {
				c.release()
				return
			}
			y := i * stripLines
			lines := min(stripLines, height-y)
			keys[i] = stripKey{indexed: indexed != nil, width: width, lines: lines}
			var encode func(to []byte) []byte
			if indexed != nil {
				pixels := indexed[y*width : (y+lines)*width]
				keys[i].hash = maphash.Bytes(pixelSeed, pixels)
				encode = func(to []byte) []byte { return plainLines(to, pixels, width) }
			} else {
				keys[i].hash = hashLines(img, y, lines)
				encode = func(to []byte) []byte { return filteredLines(to, img, y, lines) }
			}
			var cached bool
			if strips[i], cached = e.cache[keys[i]]; !cached {
				strips[i] = c.compress(encode)
			}
		}
	}
	var others sync.WaitGroup
	for range min(maxCompressors, runtime.GOMAXPROCS(0), len(strips)) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	e.store(keys, strips)
	return strips
}

// store replaces the cache.
func (e *pngEncoder) store(keys []stripKey, strips []strip) {
	e.cache = make(map[stripKey]strip, len(strips))
	size := 0
	for i := range strips {
		if size += len(strips[i].deflated); size > maxCached {
			return
		}
		e.cache[keys[i]] = strips[i]
	}
}

var pixelSeed = maphash.MakeSeed()

func hashLines(img *image.RGBA, y, lines int) uint64 {
	var h maphash.Hash
	h.SetSeed(pixelSeed)
	for ; lines > 0; y, lines = y+1, lines-1 {
		_, _ = h.Write(img.Pix[y*img.Stride:][:4*img.Rect.Dx()]) // never fails
	}
	return h.Sum64()
}

// compressor compresses strips, one after the other.
type compressor struct {
	w     *flate.Writer
	lines []byte
}

// compressors are reused, since each has some 100 KiB of tables.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // impossible: the level is valid
	}
	return w
}}

// compress compresses the lines that fill appends.
func (c *compressor) compress(fill func([]byte) []byte) strip {
	if c.w == nil {
		c.w = compressors.Get().(*flate.Writer)
	}
	c.lines = fill(c.lines[:0])
	out := make(chunks, 0, len(c.lines)/8)
	c.w.Reset(&out)
	_, _ = c.w.Write(c.lines) // to memory, so it never fails
	_ = c.w.Flush()
	return strip{deflated: out, sum: adler32.Checksum(c.lines), size: len(c.lines)}
}

func (c *compressor) release() {
	if c.w != nil {
		compressors.Put(c.w)
	}
}

// joinSums returns the Adler-32 of two concatenated texts; size is the length of the
// second, in bytes.
func joinSums(first, second uint32, size int) uint32 {
	const mod = 65521
	a1, b1, a2, b2 := first&0xffff, first>>16, second&0xffff, second>>16
	a := (a1 + a2 + mod - 1) % mod
	b := (uint64(b1) + uint64(b2) + uint64(size%mod)*uint64(a1+mod-1)) % mod
	return uint32(b)<<16 | a
}

// chunks is a part of a PNG file.
type chunks []byte

func (c *chunks) Write(p []byte) (int, error) {
	*c = append(*c, p...)
	return len(p), nil
}

func (c *chunks) chunk(kind string, data []byte) {
	at := c.begin(kind)
	*c = append(*c, data...)
	c.end(at)
}

// begin appends the header of a chunk and returns its offset for end.
func (c *chunks) begin(kind string) int {
	*c = append(append(*c, 0, 0, 0, 0), kind...)
	return len(*c) - 8
}

// end sets the length of a chunk and appends the checksum.
func (c *chunks) end(at int) {
	binary.BigEndian.PutUint32((*c)[at:], uint32(len(*c)-at-8))
	*c = binary.BigEndian.AppendUint32(*c, crc32.ChecksumIEEE((*c)[at+4:]))
}

// indexColours returns the colours of a picture and its pixels as indexes of colours, or
// nil if there are more than 256 colours.
func indexColours(img *image.RGBA) (colours, indexed []byte) {
	const slots = 1024
	var keys [slots]uint32 // a hash table with linear probing; used slots are not 0, because of alpha
	var values [slots]byte
	width, height := img.Rect.Dx(), img.Rect.Dy()
	indexed = make([]byte, width*height)
	var last uint32
	var index byte
	for y := range height {
		line := img.Pix[y*img.Stride:][:4*width]
		to := indexed[y*width:][:width]
		for x := range to {
			p := binary.LittleEndian.Uint32(line[4*x:])
			if p != last {
				slot := (p * 0x9e3779b1) >> 22
				for keys[slot] != p && keys[slot] != 0 {
					slot = (slot + 1) % slots
				}
				if keys[slot] == 0 {
					if len(colours) == 3*256 {
						return nil, nil
					}
					keys[slot], values[slot] = p, byte(len(colours)/3)
					colours = append(colours, byte(p), byte(p>>8), byte(p>>16))
				}
				last, index = p, values[slot]
			}
			to[x] = index
		}
	}
	return colours, indexed
}

// plainLines appends lines of indexes without a filter.
func plainLines(to, pixels []byte, width int) []byte {
	for ; len(pixels) > 0; pixels = pixels[width:] {
		to = append(append(to, 0), pixels[:width]...)
	}
	return to
}

// filteredLines appends lines of a picture from y on, three bytes per pixel. A line, other
// than the first, may be stored as the difference from the line above.
func filteredLines(to []byte, img *image.RGBA, y, lines int) []byte {
	width := img.Rect.Dx()
	var above []byte
	for ; lines > 0; y, lines = y+1, lines-1 {
		line, at := img.Pix[y*img.Stride:][:4*width], len(to)
		to = slices.Grow(to, 1+3*width+slack)[:at+1+3*width]
		switch {
		case bytes.Equal(line, above):
			to[at] = 2
			clear(to[at+1:])
		case above != nil && alike(line, above) > width/2:
			to[at] = 2
			putDifferences(to[at+1:], line, above)
		default:
			to[at] = 0
			putColours(to[at+1:], line)
		}
		above = line
	}
	return to
}

// alike counts the pixels that are the same in both lines. It compares pairs.
func alike(line, above []byte) int {
	same := 0
	above = above[:len(line)]
	for i := 0; i+8 <= len(line); i += 8 {
		if binary.LittleEndian.Uint64(line[i:]) == binary.LittleEndian.Uint64(above[i:]) {
			same += 2
		}
	}
	return same
}

// slack is how many bytes beyond a line's end may be overwritten, since pixels are written
// in pairs.
const slack = 2

// putColours writes the colours of a line, two pixels at a time.
func putColours(to, line []byte) {
	to = to[:len(to)+slack]
	at := 0
	for ; len(line) >= 8; line, at = line[8:], at+6 {
		binary.LittleEndian.PutUint64(to[at:], pack(binary.LittleEndian.Uint64(line)))
	}
	if len(line) >= 4 {
		to[at], to[at+1], to[at+2] = line[0], line[1], line[2]
	}
}

// putDifferences writes the differences between the colours of a line and of the line
// above, two pixels at a time.
func putDifferences(to, line, above []byte) {
	to = to[:len(to)+slack]
	at := 0
	for ; len(line) >= 8 && len(above) >= 8; line, above, at = line[8:], above[8:], at+6 {
		binary.LittleEndian.PutUint64(to[at:], pack(subtractBytes(binary.LittleEndian.Uint64(line), binary.LittleEndian.Uint64(above))))
	}
	if len(line) >= 4 {
		to[at], to[at+1], to[at+2] = line[0]-above[0], line[1]-above[1], line[2]-above[2]
	}
}

// pack removes the fourth byte of two pixels.
func pack(p uint64) uint64 { return p&0xffffff | p>>8&0xffffff000000 }

// subtractBytes subtracts each byte of b from that of a, without borrowing between bytes.
func subtractBytes(a, b uint64) uint64 {
	const top = 0x8080808080808080
	return (a | top - b&^top) ^ (a^^b)&top
}
