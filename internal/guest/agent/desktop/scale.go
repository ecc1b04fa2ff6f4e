package desktop

import (
	"image"
	"math"
)

// scaleDown returns a picture without transparency in a smaller size, sharp enough for
// text, with the Catmull-Rom kernel. It works line by line, so besides the two pictures it
// needs memory for only a few lines. An intermediate picture would take eight times the
// memory of a large screen, inside the sandbox.
func scaleDown(img *image.RGBA, size image.Point) *image.RGBA {
	width := img.Rect.Dx()
	columns, rows := tapsOf(width, size.X), tapsOf(img.Rect.Dy(), size.Y)
	small := image.NewRGBA(image.Rectangle{Max: size})
	line := make([]float32, 3*width)
	for y, row := range rows {
		clear(line)
		for i, weight := range row.weights {
			addLine(line, img.Pix[(row.first+i)*img.Stride:][:4*width], weight)
		}
		squeeze(small.Pix[y*small.Stride:][:4*size.X], line, columns)
	}
	return small
}

// addLine adds the weighted colours of a line of pixels to sum.
func addLine(sum []float32, pix []byte, weight float32) {
	for ; len(pix) >= 4 && len(sum) >= 3; pix, sum = pix[4:], sum[3:] {
		sum[0] += weight * float32(pix[0])
		sum[1] += weight * float32(pix[1])
		sum[2] += weight * float32(pix[2])
	}
}

// squeeze scales the colours of a line to the pixels of a shorter line.
func squeeze(pix []byte, line []float32, columns []taps) {
	for x, column := range columns {
		var r, g, b float32
		at := line[3*column.first:]
		for i, weight := range column.weights {
			r += weight * at[3*i]
			g += weight * at[3*i+1]
			b += weight * at[3*i+2]
		}
		to := pix[4*x:][:4]
		to[0], to[1], to[2], to[3] = shade(r), shade(g), shade(b), 255
	}
}

// shade rounds and clamps a colour: the kernel overshoots in both directions.
func shade(v float32) byte { return byte(min(max(v+0.5, 0), 255)) }

// taps are the weights of the pixels of a line, from first on, for one pixel of a shorter
// line.
type taps struct {
	first   int
	weights []float32
}

// tapsOf returns the taps for every pixel when a line is scaled from a length to a smaller
// one.
func tapsOf(from, to int) []taps {
	all := make([]taps, to)
	ratio := float64(from) / float64(to)
	for i := range all {
		middle := (float64(i)+0.5)*ratio - 0.5
		first, last := max(0, int(math.Ceil(middle-2*ratio))), min(from-1, int(math.Floor(middle+2*ratio)))
		weights := make([]float32, last-first+1)
		sum := 0.0
		for n := range weights {
			weight := catmullRom(math.Abs(float64(first+n)-middle) / ratio)
			weights[n] = float32(weight)
			sum += weight
		}
		for n := range weights {
			weights[n] /= float32(sum)
		}
		all[i] = taps{first: first, weights: weights}
	}
	return all
}

// catmullRom is the weight at a distance of 0 to 2.
func catmullRom(t float64) float64 {
	if t < 1 {
		return (1.5*t-2.5)*t*t + 1
	}
	return ((-0.5*t+2.5)*t-4)*t + 2
}
