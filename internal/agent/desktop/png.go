package desktop

import (
	"encoding/binary"
	"hash/crc32"
	"image"
	"io"

	"github.com/klauspost/compress/zlib"
)

// encodePNG writes a picture without transparency as PNG, for speed first: an
// agent waits for it. Screens are mostly plain areas and text. Where they have
// few colours, a byte a pixel is enough; otherwise each line is as it is or
// the difference from the one above. Both is measured to be smaller and faster than what
// image/png does in the same time.
func encodePNG(img *image.RGBA) []byte {
	width, height := img.Rect.Dx(), img.Rect.Dy()
	out := make(chunks, 0, 64<<10+width*height/4)
	out = append(out, "\x89PNG\r\n\x1a\n"...)
	var head [13]byte
	binary.BigEndian.PutUint32(head[0:], uint32(width))
	binary.BigEndian.PutUint32(head[4:], uint32(height))
	head[8] = 8
	colours, indexed := indexColours(img)
	if indexed != nil {
		head[9] = 3
		out.chunk("IHDR", head[:])
		out.chunk("PLTE", colours)
		at := out.begin("IDAT")
		compress(&out, func(w io.Writer) {
			line := make([]byte, 1+width)
			for y := range height {
				copy(line[1:], indexed[y*width:])
				_, _ = w.Write(line) // goes to memory
			}
		})
		out.end(at)
	} else {
		head[9] = 2
		out.chunk("IHDR", head[:])
		at := out.begin("IDAT")
		compress(&out, func(w io.Writer) { writeLines(w, img) })
		out.end(at)
	}
	out.chunk("IEND", nil)
	return out
}

// chunks is a PNG file being made.
type chunks []byte

// Write implements [io.Writer].
func (c *chunks) Write(p []byte) (int, error) {
	*c = append(*c, p...)
	return len(p), nil
}

func (c *chunks) chunk(kind string, data []byte) {
	at := c.begin(kind)
	*c = append(*c, data...)
	c.end(at)
}

func (c *chunks) begin(kind string) int {
	*c = append(append(*c, 0, 0, 0, 0), kind...)
	return len(*c) - 8
}

func (c *chunks) end(at int) {
	binary.BigEndian.PutUint32((*c)[at:], uint32(len(*c)-at-8))
	*c = binary.BigEndian.AppendUint32(*c, crc32.ChecksumIEEE((*c)[at+4:]))
}

func compress(out io.Writer, write func(io.Writer)) {
	w, err := zlib.NewWriterLevel(out, zlib.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the package's
	}
	write(w)
	_ = w.Close() // goes to memory
}

// indexColours returns the colours of a picture and the picture as indexes into
// them, if there are at most 256.
func indexColours(img *image.RGBA) (colours, indexed []byte) {
	const slots = 1024
	var keys [slots]uint32 // a colour is in the slot of its hash, or after it; alpha marks it as used
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

// writeLines writes the lines of a picture, three bytes a pixel, each as it is
// or as the difference from the one above.
func writeLines(w io.Writer, img *image.RGBA) {
	width := img.Rect.Dx()
	plain, above, line := make([]byte, 3*width), make([]byte, 3*width), make([]byte, 1+3*width)
	for y := range img.Rect.Dy() {
		dropAlpha(plain, img.Pix[y*img.Stride:][:4*width])
		same := 0
		for i := 0; i < len(plain); i += 3 {
			if plain[i] == above[i] && plain[i+1] == above[i+1] && plain[i+2] == above[i+2] {
				same++
			}
		}
		if y > 0 && same > width/2 {
			line[0] = 2
			for i := range plain {
				line[1+i] = plain[i] - above[i]
			}
		} else {
			line[0] = 0
			copy(line[1:], plain)
		}
		_, _ = w.Write(line) // goes to memory
		plain, above = above, plain
	}
}

func dropAlpha(dst, src []byte) {
	for len(src) >= 4 && len(dst) >= 3 {
		dst[0], dst[1], dst[2] = src[0], src[1], src[2]
		src, dst = src[4:], dst[3:]
	}
}
