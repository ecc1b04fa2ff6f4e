package agent

func initMain() {}
