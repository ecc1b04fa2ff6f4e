package limits

import "testing"

func TestAcceptedIsBounded(t *testing.T) {
	var k Accepted
	for i := range 2 * MaxAccepted {
		k.Add([32]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	if len(k.all) > MaxAccepted {
		t.Errorf("%d are known", len(k.all))
	}
	last := [32]byte{1: 0xff, 0: 0xff, 2: 0xff}
	k.Add(last)
	if !k.Has(last) {
		t.Error("what was just added is not known")
	}
	if k.Forget(last); k.Has(last) {
		t.Error("what was forgotten is known")
	}
}
