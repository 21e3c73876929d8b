module tailwater.example/tailwater

go 1.19
