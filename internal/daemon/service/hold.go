package service

// use keeps a checkpoint that is being written or read from being collected, although
// no record refers to it yet, until release is called.
func (s *Service) use(checkpoint string) (release func()) {
	s.mu.Lock()
	s.using[checkpoint]++
	s.ours[checkpoint] = true
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.using[checkpoint]--; s.using[checkpoint] > 0 {
			return
		}
		delete(s.using, checkpoint)
		if s.spared[checkpoint] {
			delete(s.spared, checkpoint)
			s.collectSoon()
		}
	}
}

// spare reports whether a checkpoint is in use, or was at the caller's last look. If
// so, the collector checks it again later.
func (s *Service) spare(checkpoint string, was bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.using[checkpoint] > 0:
		s.spared[checkpoint] = true
	case was:
		s.collectSoon()
	default:
		return false
	}
	return true
}

// collectSoon wakes the collector, which removes the checkpoints that nothing refers
// to.
func (s *Service) collectSoon() {
	select {
	case s.collect <- struct{}{}:
	default:
	}
}
