package desktop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"image"
	"image/jpeg"
	"math/bits"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/sandbox"
)

// defaultQuality is the default quality of JPEG pictures.
const defaultQuality = 80

// Screenshot takes a picture of the screen.
func (d *Desktop) Screenshot(ctx context.Context, req *sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	if err := checkScreenshot(req); err != nil {
		return nil, err
	}
	stable := true
	if req.StableMS > 0 {
		var err error
		stable, err = retry(ctx, d, func(s *session) (bool, error) {
			return d.settle(ctx, s, time.Duration(req.StableMS)*time.Millisecond)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := d.shots.lock(ctx); err != nil {
		return nil, d.explain(err)
	}
	defer d.shots.unlock()
	shot, err := retry(ctx, d, func(s *session) (*sandbox.Screenshot, error) {
		shot, err := d.shoot(ctx, s, req)
		if _, ok := errors.AsType[*x11.Error](err); ok {
			// The screen may have become smaller between two requests.
			return d.shoot(ctx, s, req)
		}
		return shot, err
	})
	if err != nil {
		return nil, err
	}
	shot.Stable = stable
	return shot, nil
}

func checkScreenshot(req *sandbox.ScreenshotRequest) error {
	switch {
	case req.Width < 0 || req.Height < 0:
		return sandbox.Errorf(sandbox.CodeInvalid, "width and height of a picture are not negative; leave them out for the screen's own")
	case req.StableMS < 0 || req.StableMS > sandbox.MaxStableWait.Milliseconds():
		return sandbox.Errorf(sandbox.CodeInvalid, "stable_ms is out of range; use 0 to %d", sandbox.MaxStableWait.Milliseconds())
	case req.Quality < 0 || req.Quality > 100:
		return sandbox.Errorf(sandbox.CodeInvalid, "quality is out of range; use 1 to 100")
	}
	switch req.Format {
	case "", sandbox.ImagePNG, sandbox.ImageJPEG:
		return nil
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "the format %.32q is unknown; use png or jpeg", req.Format)
}

// shoot takes a picture now.
func (d *Desktop) shoot(ctx context.Context, s *session, req *sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	taken := time.Now()
	img, screen, err := d.capture(ctx, s, req)
	if err != nil {
		return nil, err
	}
	if box := fit(img.Rect.Size(), req.Width, req.Height); box != img.Rect.Size() {
		img = scaleDown(img, box)
	}
	shot := &sandbox.Screenshot{Width: img.Rect.Dx(), Height: img.Rect.Dy(), Screen: *screen, TakenAt: taken.UTC()}
	if req.Format == sandbox.ImageJPEG {
		var out bytes.Buffer
		if err := jpeg.Encode(&out, img, &jpeg.Options{Quality: cmp.Or(req.Quality, defaultQuality)}); err != nil {
			return nil, err
		}
		shot.MIME, shot.Data = "image/jpeg", out.Bytes()
	} else {
		shot.MIME, shot.Data = "image/png", d.png.encode(img)
	}
	if len(shot.Data) > sandbox.MaxPicture {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the picture has %d bytes, at most %d can be had; take it as JPEG, scaled, or of a region", len(shot.Data), sandbox.MaxPicture)
	}
	return shot, nil
}

// capture reads the requested part of the screen, and the size of the screen and the
// pointer, in one round trip. It assumes the last known size and starts again if the size
// has changed.
func (d *Desktop) capture(ctx context.Context, s *session, req *sandbox.ScreenshotRequest) (*image.RGBA, *sandbox.Screen, error) {
	for again := false; ; again = true {
		size, asked := *s.size.Load(), s.askScreen()
		var img *image.RGBA
		part, err := partOf(size, req.Region)
		if err == nil {
			img, err = d.grab(ctx, s, part, req.Cursor && s.xfixes.Opcode != 0)
		}
		screen, e := asked.wait(ctx)
		switch {
		case e != nil:
			return nil, nil, e
		case size == image.Pt(screen.Width, screen.Height):
			return img, screen, err
		case again:
			return nil, nil, sandbox.Errorf(sandbox.CodeUnavailable, "the screen changes its size all the time; try again")
		}
	}
}

// Drawn reports whether a region has more than one colour: a window in which the program
// has drawn nothing yet has only one. A part of the region may be outside the screen.
func (d *Desktop) Drawn(ctx context.Context, region sandbox.Region) (bool, error) {
	if err := d.shots.lock(ctx); err != nil {
		return false, d.explain(err)
	}
	defer d.shots.unlock()
	return retry(ctx, d, func(s *session) (bool, error) {
		r := image.Rect(region.X, region.Y, region.X+region.Width, region.Y+region.Height).Intersect(image.Rectangle{Max: *s.size.Load()})
		if r.Empty() {
			return false, nil
		}
		img, _, err := d.capture(ctx, s, &sandbox.ScreenshotRequest{Region: &sandbox.Region{X: r.Min.X, Y: r.Min.Y, Width: r.Dx(), Height: r.Dy()}})
		if err != nil {
			return false, err
		}
		return !uniform(img), nil
	})
}

// uniform reports whether a picture has one colour only.
func uniform(img *image.RGBA) bool {
	return len(img.Pix) <= 4 || bytes.Equal(img.Pix[4:], img.Pix[:len(img.Pix)-4])
}

// partOf returns the rectangle of a region of the screen, which may be nil for all of it.
func partOf(size image.Point, r *sandbox.Region) (image.Rectangle, error) {
	if size.X > sandbox.MaxScreenWidth || size.Y > sandbox.MaxScreenHeight {
		return image.Rectangle{}, sandbox.Errorf(sandbox.CodeTooLarge, "the screen has %d by %d pixels; at most %d by %d are supported",
			size.X, size.Y, sandbox.MaxScreenWidth, sandbox.MaxScreenHeight)
	}
	if r == nil {
		return image.Rectangle{Max: size}, nil
	}
	if r.X < 0 || r.Y < 0 || r.Width < 1 || r.Height < 1 || r.Width > size.X-r.X || r.Height > size.Y-r.Y {
		return image.Rectangle{}, sandbox.Errorf(sandbox.CodeInvalid, "the region is not within the screen, which is %d by %d pixels", size.X, size.Y)
	}
	return image.Rect(r.X, r.Y, r.X+r.Width, r.Y+r.Height), nil
}

// fit returns the largest size with the aspect ratio of size that fits into width by
// height, where 0 is unlimited, and is not larger than size.
func fit(size image.Point, width, height int) image.Point {
	if width == 0 || width > size.X {
		width = size.X
	}
	if height == 0 || height > size.Y {
		height = size.Y
	}
	if width*size.Y <= height*size.X {
		return image.Pt(width, max(1, (width*size.Y+size.X/2)/size.X))
	}
	return image.Pt(max(1, (height*size.X+size.Y/2)/size.Y), height)
}

// maxPiece bounds the bytes of a picture in one reply: the server is busy meanwhile, and
// needs as much memory.
const maxPiece = 4 << 20

// grab reads a part of the screen.
func (d *Desktop) grab(ctx context.Context, s *session, part image.Rectangle, cursor bool) (*image.RGBA, error) {
	stride := s.Setup().Stride(part.Dx())
	wait, err := d.ask(ctx, s, part, stride)
	if err != nil {
		return nil, err
	}
	var pointer *x11.Reply
	if cursor {
		pointer = s.CursorImage(s.xfixes)
	}
	raw, err := wait()
	if err != nil {
		return nil, err
	}
	img := decode(s.Setup(), part.Size(), raw, stride)
	if !cursor {
		return img, nil
	}
	b, err := pointer.Wait(ctx)
	if err != nil {
		return nil, err
	}
	k, err := x11.ParseCursor(b)
	if err != nil {
		return nil, err
	}
	drawCursor(img, part.Min, k)
	return img, nil
}

var errPartOfPicture = errors.New("the X server sent a part of a picture")

// ask requests a part of the screen. wait returns the pixels in the server's format.
func (d *Desktop) ask(ctx context.Context, s *session, part image.Rectangle, stride int) (wait func() ([]byte, error), err error) {
	size := stride * part.Dy()
	whole := stride / part.Dx() * s.size.Load().X * s.size.Load().Y
	g, err := d.share(ctx, s, max(size, min(whole, keepFrame)))
	if err != nil {
		return nil, err
	}
	if g == nil {
		return d.askSocket(ctx, s, part, stride), nil
	}
	r := s.GetShmImage(s.shm, part.Min.X, part.Min.Y, part.Dx(), part.Dy(), g.id)
	return func() ([]byte, error) {
		b, err := r.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if x11.ShmImageSize(b) < size {
			return nil, errPartOfPicture
		}
		return g.mem[:size], nil
	}, nil
}

// askSocket is [Desktop.ask] without shared memory.
func (d *Desktop) askSocket(ctx context.Context, s *session, part image.Rectangle, stride int) func() ([]byte, error) {
	lines := min(max(1, maxPiece/stride), part.Dy())
	buf := d.frame
	if d.frame = nil; cap(buf) < stride*part.Dy()+4 {
		buf = make([]byte, stride*part.Dy()+4)
	}
	var pieces []*x11.Reply
	for y := 0; y < part.Dy(); y += lines {
		n := min(lines, part.Dy()-y)
		// The length of a message is a multiple of four.
		into := buf[y*stride:][: (n*stride+3)&^3 : (n*stride+3)&^3]
		pieces = append(pieces, s.GetImage(part.Min.X, part.Min.Y+y, part.Dx(), n, into))
	}
	return func() ([]byte, error) {
		for i, r := range pieces {
			n := min(lines, part.Dy()-i*lines)
			head, err := r.Wait(ctx)
			if err != nil {
				return nil, err // d.frame stays nil: the buffer may still be written to
			}
			if x11.ImageSize(head) < n*stride {
				return nil, errPartOfPicture
			}
		}
		if len(buf) <= keepFrame {
			d.frame = buf
		}
		return buf[:stride*part.Dy()], nil
	}
}

// keepFrame bounds the memory that is kept for the next picture, in bytes.
const keepFrame = 8 << 20

// decode converts the server's pixels to a picture, in the same memory if
// possible. The picture is valid while the caller holds Desktop.shots.
func decode(setup *x11.Setup, size image.Point, raw []byte, stride int) *image.RGBA {
	if setup.BitsPerPixel == 32 && !setup.BigEndian && setup.Red == 0xff0000 && setup.Green == 0xff00 && setup.Blue == 0xff {
		swap(raw)
		return &image.RGBA{Pix: raw, Stride: stride, Rect: image.Rectangle{Max: size}}
	}
	img := image.NewRGBA(image.Rectangle{Max: size})
	red, green, blue := newChannel(setup.Red), newChannel(setup.Green), newChannel(setup.Blue)
	unit := setup.BitsPerPixel / 8
	for y := range size.Y {
		src, dst := raw[y*stride:][:unit*size.X], img.Pix[y*img.Stride:][:4*size.X]
		for ; len(src) >= unit; src, dst = src[unit:], dst[4:] {
			var p uint32
			for i := range unit {
				if setup.BigEndian {
					p = p<<8 | uint32(src[i])
				} else {
					p |= uint32(src[i]) << (8 * i)
				}
			}
			dst[0], dst[1], dst[2], dst[3] = red.of(p), green.of(p), blue.of(p), 255
		}
	}
	return img
}

// swap converts BGRX pixels to RGBA, two at a time.
func swap(pix []byte) {
	for ; len(pix) >= 8; pix = pix[8:] {
		p := binary.LittleEndian.Uint64(pix)
		p = p&0x0000ff000000ff00 | p>>16&0x000000ff000000ff | p<<16&0x00ff000000ff0000 | 0xff000000ff000000
		binary.LittleEndian.PutUint64(pix, p)
	}
	if len(pix) >= 4 {
		pix[0], pix[2], pix[3] = pix[2], pix[0], 255
	}
}

// channel is the position of one colour in a pixel.
type channel struct {
	shift, bits int
}

func newChannel(mask uint32) channel {
	if mask == 0 {
		return channel{}
	}
	shift := bits.TrailingZeros32(mask)
	return channel{shift: shift, bits: bits.TrailingZeros32(^(mask >> shift))}
}

func (c channel) of(p uint32) byte {
	v := p >> c.shift
	if c.bits >= 8 {
		return byte(v >> (c.bits - 8))
	}
	most := uint32(1)<<c.bits - 1
	if most == 0 {
		return 0
	}
	return byte((v & most) * 255 / most)
}

// drawCursor draws a cursor onto a picture whose top left corner is at origin on the
// screen.
func drawCursor(img *image.RGBA, origin image.Point, k *x11.Cursor) {
	for i, p := range k.Pixels {
		at := image.Pt(k.X+i%k.Width, k.Y+i/k.Width).Sub(origin)
		if !at.In(img.Rect) {
			continue
		}
		pix := img.Pix[img.PixOffset(at.X, at.Y):]
		alpha := p >> 24
		for c, shift := range []int{16, 8, 0} {
			pix[c] = byte(min(255, p>>shift&0xff+(255-alpha)*uint32(pix[c])/255))
		}
	}
}

// changeInterval is the minimum interval between two reports of changes.
const changeInterval = 5 * time.Millisecond

// watch reports changes of the screen. Desktop.settling is held while a watch exists.
type watch struct {
	s  *session
	id uint32
}

func (s *session) watch(ctx context.Context) (*watch, error) {
	id, made := s.WatchDamage(s.damage, s.Setup().Root)
	if _, err := made.Wait(ctx); err != nil {
		return nil, err
	}
	return &watch{s: s, id: id}, nil
}

func (w *watch) end() {
	w.s.ForgetDamage(w.s.damage, w.id)
	_ = w.s.Flush() // the watch ends with the connection anyway
}

// await waits until the screen has not changed for quiet or, if it does not change at all,
// for first. The result is false if the screen is still changing after total.
func (w *watch) await(ctx context.Context, first, quiet, total time.Duration) (bool, error) {
	s := w.s
	end := time.NewTimer(total)
	defer end.Stop()
	calm := time.NewTimer(first)
	defer calm.Stop()
	for {
		select {
		case <-calm.C:
			// A change may have arrived at the same moment.
			select {
			case <-s.changed:
			default:
				return true, nil
			}
		case <-end.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.Dead():
			return false, s.Err()
		case <-s.changed:
		}
		time.Sleep(changeInterval) // permanent changes must not keep the server busy with reports
		s.RepairDamage(s.damage, w.id)
		if err := s.Sync(ctx); err != nil {
			return false, err
		}
		calm.Reset(quiet) // from now on the server reports changes again
	}
}

// settle waits until the screen has not changed for quiet. The result is false if the
// screen is still changing after the longest wait.
func (d *Desktop) settle(ctx context.Context, s *session, quiet time.Duration) (bool, error) {
	if s.damage.Opcode == 0 {
		return d.settleByFrames(ctx, s, quiet)
	}
	if err := d.settling.lock(ctx); err != nil {
		return false, err
	}
	defer d.settling.unlock()
	w, err := s.watch(ctx)
	if err != nil {
		return false, err
	}
	defer w.end()
	return w.await(ctx, quiet, quiet, d.maxSettle)
}

// frameInterval is how often frames are compared if the server cannot report changes.
const frameInterval = 100 * time.Millisecond

// settleByFrames is settle for servers without the extension DAMAGE: it compares pictures.
func (d *Desktop) settleByFrames(ctx context.Context, s *session, quiet time.Duration) (bool, error) {
	end := time.Now().Add(d.maxSettle)
	var last uint64
	since := time.Now()
	for first := true; ; first = false {
		sum, err := d.sum(ctx, s)
		if err != nil {
			return false, err
		}
		now := time.Now()
		if first || sum != last {
			last, since = sum, now
		}
		switch {
		case now.Sub(since) >= quiet:
			return true, nil
		case now.After(end):
			return false, nil
		}
		if err := pause(ctx, min(frameInterval, quiet-now.Sub(since))); err != nil {
			return false, err
		}
	}
}

// sum returns a hash of the screen's content.
func (d *Desktop) sum(ctx context.Context, s *session) (uint64, error) {
	if err := d.shots.lock(ctx); err != nil {
		return 0, err
	}
	defer d.shots.unlock()
	screen, err := s.screen(ctx)
	if err != nil {
		return 0, err
	}
	part, err := partOf(image.Pt(screen.Width, screen.Height), nil)
	if err != nil {
		return 0, err
	}
	img, err := d.grab(ctx, s, part, false)
	if err != nil {
		return 0, err
	}
	return maphash.Bytes(frameSeed, img.Pix), nil
}

var frameSeed = maphash.MakeSeed()
