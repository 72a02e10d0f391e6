.program product
.machine npu
.tensor A int8 [64, 16] input
.tensor B int8 [16, 16] constant
.tensor C int32 [64, 16] output

load S=A[0; r=16] D=buffer[0] r=64 e=16
load S=B[0; r=16] D=buffer[64] r=16 e=16
first_product A=buffer[0; x=1] B=buffer[64] C=sums[0] x=64 y=16 z=16
store_sums S=sums[0] D=C[0; r=16] r=64 e=16
