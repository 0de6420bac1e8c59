module example.com/speak

go 1.19
