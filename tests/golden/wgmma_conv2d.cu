extern "C" __global__ void __launch_bounds__(384, 1) product_kernel(const __grid_constant__ CUtensorMap A_map, const __grid_constant__ CUtensorMap B_map, float* __restrict__ C_ptr) {
  alignas(64) int worker_ptr[1];
  alignas(64) int rank_ptr[1];
  alignas(64) int ring_ptr[2];
  extern __shared__ __align__(1024) uchar shared_ptr[];
  alignas(64) int warp_ptr[1];
  alignas(64) int producer_ptr[1];
  alignas(64) int item_ptr[1];
  alignas(64) int column_block_ptr[1];
  alignas(64) int deep_step_ptr[1];
  alignas(64) int barrier_ptr[1];
  alignas(64) int lane_ptr[1];
  alignas(64) int consumer_ptr[1];
  alignas(64) uint64_t first_ptr[1];
  alignas(64) uint64_t second_ptr[1];
  alignas(64) float sums_ptr[16];
  alignas(64) int item_ptr_1[1];
  alignas(64) int column_block_ptr_1[1];
  alignas(64) uint64_t distance_ptr[1];
  alignas(64) int stage_ptr[1];
  alignas(64) int slot_ptr[1];
  alignas(64) int result_row_ptr[1];
  alignas(64) int row_tile_ptr[1];
  alignas(64) int column_tile_ptr[1];
  alignas(64) int valid_ptr[1];
  alignas(64) float held_ptr[4];
  alignas(64) int later_ptr[1];
  worker_ptr[0] = 0;
  rank_ptr[0] = ((int)blockIdx.x);
  ring_ptr[0] = 0;
  ring_ptr[1] = 0;
  if (((int)threadIdx.x) == 0) {
    for (int stage = 0; stage < 3; ++stage) {
      cpembed_mbarrier_init((&(shared_ptr[((stage * 8) + 57344)])), 1);
      cpembed_mbarrier_init((&(shared_ptr[((stage * 8) + 57368)])), 8);
    }
    cpembed_mbarrier_init((&(shared_ptr[57392])), 4);
    cpembed_mbarrier_init((&(shared_ptr[57400])), 4);
    cpembed_mbarrier_init_fence();
  }
  cpembed_cluster_sync();
  warp_ptr[0] = cpembed_uniform((((int)threadIdx.x) / 32));
  if (8 <= warp_ptr[0]) {
    cpembed_registers_dec_40();
    producer_ptr[0] = (((int)threadIdx.x) - 256);
    if (producer_ptr[0] == 0) {
      cpembed_prefetch_map(((unsigned long long)(&(A_map))));
      cpembed_prefetch_map(((unsigned long long)(&(B_map))));
      for (int turn_of_block = 0; turn_of_block < 4; ++turn_of_block) {
        item_ptr[0] = (turn_of_block + worker_ptr[0]);
        item_ptr[0] = item_ptr[0];
        item_ptr[0] = item_ptr[0];
        item_ptr[0] = ((item_ptr[0] * 2) + rank_ptr[0]);
        column_block_ptr[0] = 0;
        for (int step = 0; step < 9; ++step) {
          cpembed_mbarrier_wait((&(shared_ptr[((ring_ptr[0] * 8) + 57368)])), (ring_ptr[1] ^ 1));
          deep_step_ptr[0] = step;
          barrier_ptr[0] = ((ring_ptr[0] * 8) + 57344);
          cpembed_mbarrier_expect((&(shared_ptr[barrier_ptr[0]])), 12288);
          cpembed_tensor_load_4d_im2col((&(shared_ptr[(ring_ptr[0] * 12288)])), ((unsigned long long)(&(A_map))), (&(shared_ptr[barrier_ptr[0]])), 0, (((item_ptr[0] * 64) % 14) - 1), ((((item_ptr[0] * 64) % 196) / 14) - 1), ((item_ptr[0] * 64) / 196), (deep_step_ptr[0] % 3), (deep_step_ptr[0] / 3));
          if (rank_ptr[0] == 0) {
            cpembed_tensor_load_4d_multicast((&(shared_ptr[((ring_ptr[0] * 12288) + 8192)])), ((unsigned long long)(&(B_map))), (&(shared_ptr[barrier_ptr[0]])), 0, (column_block_ptr[0] * 32), (deep_step_ptr[0] % 3), (deep_step_ptr[0] / 3), 3);
          }
          ring_ptr[0] = (ring_ptr[0] + 1);
          if (ring_ptr[0] == 3) {
            ring_ptr[0] = 0;
            ring_ptr[1] = (ring_ptr[1] ^ 1);
          }
        }
      }
    }
  } else {
    cpembed_registers_inc_232();
    lane_ptr[0] = (((int)threadIdx.x) & 31);
    consumer_ptr[0] = (warp_ptr[0] / 4);
    first_ptr[0] = cpembed_matrix_descriptor((&(shared_ptr[0])), (int64_t)4611686293305360384);
    second_ptr[0] = cpembed_matrix_descriptor((&(shared_ptr[8192])), (int64_t)4611686293305360384);
    for (int turn_of_block_1 = 0; turn_of_block_1 < 4; ++turn_of_block_1) {
      item_ptr_1[0] = (turn_of_block_1 + worker_ptr[0]);
      item_ptr_1[0] = item_ptr_1[0];
      item_ptr_1[0] = item_ptr_1[0];
      item_ptr_1[0] = ((item_ptr_1[0] * 2) + rank_ptr[0]);
      column_block_ptr_1[0] = 0;
      if ((turn_of_block_1 & 1) == consumer_ptr[0]) {
        cpembed_mbarrier_wait((&(shared_ptr[((consumer_ptr[0] * 8) + 57392)])), (((turn_of_block_1 >> 1) + ((int)(consumer_ptr[0] == 0))) & 1));
        for (int step_1 = 0; step_1 < 9; ++step_1) {
          cpembed_mbarrier_wait((&(shared_ptr[((ring_ptr[0] * 8) + 57344)])), ring_ptr[1]);
          distance_ptr[0] = ((uint64_t)(ring_ptr[0] * 768));
          cpembed_wgmma_fence();
          cpembed_wgmma_mma_m64n32k16_f32_f16_f16((&(sums_ptr[0])), (first_ptr[0] + distance_ptr[0]), (second_ptr[0] + distance_ptr[0]), ((int)(0 < step_1)));
          cpembed_wgmma_mma_m64n32k16_f32_f16_f16((&(sums_ptr[0])), ((first_ptr[0] + distance_ptr[0]) + (uint64_t)2ULL), ((second_ptr[0] + distance_ptr[0]) + (uint64_t)2ULL), 1);
          cpembed_wgmma_mma_m64n32k16_f32_f16_f16((&(sums_ptr[0])), ((first_ptr[0] + distance_ptr[0]) + (uint64_t)4ULL), ((second_ptr[0] + distance_ptr[0]) + (uint64_t)4ULL), 1);
          cpembed_wgmma_mma_m64n32k16_f32_f16_f16((&(sums_ptr[0])), ((first_ptr[0] + distance_ptr[0]) + (uint64_t)6ULL), ((second_ptr[0] + distance_ptr[0]) + (uint64_t)6ULL), 1);
          cpembed_wgmma_commit();
          cpembed_wgmma_wait_1();
          if (0 < step_1) {
            if (lane_ptr[0] < 2) {
              int condval;
              if (ring_ptr[0] == 0) {
                condval = 2;
              } else {
                condval = (ring_ptr[0] - 1);
              }
              int condval_1;
              if (lane_ptr[0] < 1) {
                condval_1 = rank_ptr[0];
              } else {
                int condval_2;
                if (lane_ptr[0] <= rank_ptr[0]) {
                  condval_2 = (lane_ptr[0] - 1);
                } else {
                  condval_2 = lane_ptr[0];
                }
                condval_1 = condval_2;
              }
              cpembed_mbarrier_arrive_at((&(shared_ptr[((condval * 8) + 57368)])), condval_1);
            }
          }
          ring_ptr[0] = (ring_ptr[0] + 1);
          if (ring_ptr[0] == 3) {
            ring_ptr[0] = 0;
            ring_ptr[1] = (ring_ptr[1] ^ 1);
          }
        }
        if (lane_ptr[0] == 0) {
          cpembed_mbarrier_arrive((&(shared_ptr[((((consumer_ptr[0] + 1) & 1) * 8) + 57392)])));
        }
        cpembed_wgmma_wait_0();
        if (lane_ptr[0] < 2) {
          int condval_3;
          if (ring_ptr[0] == 0) {
            condval_3 = 2;
          } else {
            condval_3 = (ring_ptr[0] - 1);
          }
          int condval_4;
          if (lane_ptr[0] < 1) {
            condval_4 = rank_ptr[0];
          } else {
            int condval_5;
            if (lane_ptr[0] <= rank_ptr[0]) {
              condval_5 = (lane_ptr[0] - 1);
            } else {
              condval_5 = lane_ptr[0];
            }
            condval_4 = condval_5;
          }
          cpembed_mbarrier_arrive_at((&(shared_ptr[((condval_3 * 8) + 57368)])), condval_4);
        }
        stage_ptr[0] = ((warp_ptr[0] * 2560) + 36864);
        cpembed_shared_store_8((&(shared_ptr[((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0])])), (&(sums_ptr[0])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 1280)])), (&(sums_ptr[2])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 32)])), (&(sums_ptr[4])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 1312)])), (&(sums_ptr[6])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 64)])), (&(sums_ptr[8])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 1344)])), (&(sums_ptr[10])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 96)])), (&(sums_ptr[12])));
        cpembed_shared_store_8((&(shared_ptr[(((((lane_ptr[0] >> 2) * 160) + ((lane_ptr[0] & 3) * 8)) + stage_ptr[0]) + 1376)])), (&(sums_ptr[14])));
        tvm_builtin_cuda_warp_sync();
        #pragma unroll 1
        for (int turn = 0; turn < 4; ++turn) {
          slot_ptr[0] = ((turn * 32) + lane_ptr[0]);
          result_row_ptr[0] = (slot_ptr[0] >> 3);
          slot_ptr[0] = ((slot_ptr[0] & 7) * 4);
          row_tile_ptr[0] = item_ptr_1[0];
          column_tile_ptr[0] = ((column_block_ptr_1[0] * 4) + (slot_ptr[0] >> 3));
          valid_ptr[0] = ((int)((((row_tile_ptr[0] < 7) && (column_tile_ptr[0] < 4)) && (-195 <= (((row_tile_ptr[0] * 64) + ((warp_ptr[0] & 3) * 16)) + result_row_ptr[0]))) && ((((row_tile_ptr[0] * 8) + ((warp_ptr[0] & 3) * 2)) + (result_row_ptr[0] >> 3)) < 49)));
          row_tile_ptr[0] = ((((((row_tile_ptr[0] * 2048) + ((warp_ptr[0] & 3) * 512)) + (result_row_ptr[0] * 32)) + (column_tile_ptr[0] * 8)) + (slot_ptr[0] % 8)) * valid_ptr[0]);
          cpembed_shared_load_16((&(held_ptr[0])), (&(shared_ptr[(((result_row_ptr[0] * 160) + (slot_ptr[0] * 4)) + stage_ptr[0])])));
          int condval_6;
          if (valid_ptr[0] == 1) {
            condval_6 = row_tile_ptr[0];
          } else {
            condval_6 = 0;
          }
          cpembed_store_16((&(C_ptr[condval_6])), (&(held_ptr[0])), valid_ptr[0]);
        }
        tvm_builtin_cuda_warp_sync();
      } else {
        later_ptr[0] = (ring_ptr[0] + 9);
        ring_ptr[1] = (ring_ptr[1] ^ ((later_ptr[0] / 3) & 1));
        ring_ptr[0] = (later_ptr[0] % 3);
      }
    }
  }
  cpembed_cluster_sync();
}

