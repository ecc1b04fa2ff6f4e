package desktop

import (
	"image"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/image/draw"
)

// TestScaleDown compares with the output of another program, on noise, where every weight
// matters.
func TestScaleDown(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 97, 61))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range img.Pix {
		if img.Pix[i] = byte(random.Uint32()); i%4 == 3 {
			img.Pix[i] = 255
		}
	}
	for _, size := range []image.Point{{X: 96, Y: 61}, {X: 97, Y: 60}, {X: 48, Y: 30}, {X: 10, Y: 6}, {X: 1, Y: 1}, {X: 97, Y: 1}} {
		want := image.NewRGBA(image.Rectangle{Max: size})
		draw.CatmullRom.Scale(want, want.Rect, img, img.Rect, draw.Src, nil)
		got := scaleDown(img, size)
		if got.Rect != want.Rect {
			t.Fatalf("the picture has %v, want %v", got.Rect, want.Rect)
		}
		for i, b := range got.Pix {
			if diff := int(b) - int(want.Pix[i]); diff < -2 || diff > 2 {
				t.Errorf("%v: byte %d is %d, want %d", size, i, b, want.Pix[i])
				break
			}
		}
	}
}

// TestScalingTakesLittleMemory attacks with a screen of the largest allowed size, scaled to
// a slightly smaller picture. All memory is the sandbox's, whose first process this is.
func TestScalingTakesLittleMemory(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 512, 4096))
	size := image.Pt(511, 4088)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	scaleDown(img, size)
	runtime.ReadMemStats(&after)
	if took, most := after.TotalAlloc-before.TotalAlloc, uint64(2*4*size.X*size.Y); took > most {
		t.Errorf("scaling a picture of %d bytes took %d, at most %d are good", len(img.Pix), took, most)
	}
}
