//.kernel sgemm_intel_block_read
//.platform TGLLP
//.thread_config numGRF=128, numAcc=2, numSWSB=16
//.declare  (260)  rf=r size=8 type=w align=1 words (r0.0)
//.declare  (262)  rf=r size=8 type=w align=1 words (r0.0)
//.declare  (264)  rf=r size=8 type=w align=1 words (r0.0)
//.declare  (266)  rf=r size=8 type=w align=1 words (r0.0)
//.declare  (268)  rf=r size=8 type=w align=1 words (r0.0)
//.declare  (270)  rf=r size=8 type=w align=1 words (r0.0)
// B002: [inDivergent],  Preds:{B000},  Succs:{B003}
_0_031:
(W)     mul (1|M0)               acc0.0<1>:d   r21.7<0;1,0>:d    r3.8<0;1,0>:uw
(W)     mach (1|M0)              r2.0<1>:d     r21.7<0;1,0>:d    r3.4<0;1,0>:d
(W)     mul (1|M0)               acc0.0<1>:d   r21.7<0;1,0>:d    r3.10<0;1,0>:uw
(W)     shl (1|M0)               r50.6<1>:d    r21.1<0;1,0>:d    5:w
(W)     mov (1|M0)               r50.4<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r55.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r52.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r53.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r51.0<1>:f    0x0:f                               {Compacted}
(W)     add (1|M0)               r50.5<1>:d    r2.0<0;1,0>:d     r61.0<0;1,0>:d   {Compacted,@7}
(W)     mach (1|M0)              r54.0<1>:d    r21.7<0;1,0>:d    r3.5<0;1,0>:d
// B003: [inDivergent],  Preds:{B003, B002},  Succs:{B004, B003}
_0_034:
(W)     mov (8|M0)               r2.0<1>:f     r21.0<8;8,1>:f                   {Compacted}
(W)     add (1|M0)               r2.1<1>:d     r54.0<0;1,0>:d    r50.4<0;1,0>:d   {@2}
(W)     mov (1|M0)               r2.0<1>:f     r50.6<0;1,0>:f                   {Compacted,@7}
(W)     mov (1|M0)               r2.2<1>:f     0x7001F:f
(W)     send.dc1 (8|M0)          r8       r2      null    0x0            0x02890001           {@1,$0}
(W)     shl (1|M0)               r2.0<1>:d     r50.4<0;1,0>:d    2:w               {Compacted,$0.src}
(W)     mov (1|M0)               r2.1<1>:f     r50.5<0;1,0>:f                   {@7}
(W)     mov (1|M0)               r2.2<1>:f     0x3001F:f
(W)     add (1|M0)               r50.4<1>:d    r50.4<0;1,0>:d    8:w
(W)     send.dc1 (8|M0)          r17      r2      null    0x0            0x02490000           {@2,$1}
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r50.4<0;1,0>:d    r6.2<0;1,0>:d    {@1}
        sync.nop                             null                             {Compacted,$1.dst}
        mad (8|M0)               acc0.0<1>:f   r51.0<8;1>:f      r8.0<8;1>:f       r17.0<0>:f       {Compacted,$0.dst}
        mad (8|M0)               acc1.0<1>:f   r53.0<8;1>:f      r8.0<8;1>:f       r18.0<0>:f       {Compacted}
        mad (8|M0)               r24.0<1>:f    r52.0<8;1>:f      r8.0<8;1>:f       r19.0<0>:f       {Compacted}
        mad (8|M0)               r25.0<1>:f    r55.0<8;1>:f      r8.0<8;1>:f       r20.0<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r9.0<8;1>:f       r17.1<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r9.0<8;1>:f       r18.1<0>:f
        mad (8|M0)               r28.0<1>:f    r24.0<8;1>:f      r9.0<8;1>:f       r19.1<0>:f       {Compacted,@4}
        mad (8|M0)               r29.0<1>:f    r25.0<8;1>:f      r9.0<8;1>:f       r20.1<0>:f       {Compacted,@4}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r10.0<8;1>:f      r17.2<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r10.0<8;1>:f      r18.2<0>:f
        mad (8|M0)               r32.0<1>:f    r28.0<8;1>:f      r10.0<8;1>:f      r19.2<0>:f       {Compacted,@4}
        mad (8|M0)               r33.0<1>:f    r29.0<8;1>:f      r10.0<8;1>:f      r20.2<0>:f       {Compacted,@4}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r11.0<8;1>:f      r17.3<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r11.0<8;1>:f      r18.3<0>:f
        mad (8|M0)               r36.0<1>:f    r32.0<8;1>:f      r11.0<8;1>:f      r19.3<0>:f       {Compacted,@4}
        mad (8|M0)               r37.0<1>:f    r33.0<8;1>:f      r11.0<8;1>:f      r20.3<0>:f       {Compacted,@4}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r12.0<8;1>:f      r17.4<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r12.0<8;1>:f      r18.4<0>:f
        mad (8|M0)               r40.0<1>:f    r36.0<8;1>:f      r12.0<8;1>:f      r19.4<0>:f       {Compacted,@4}
        mad (8|M0)               r41.0<1>:f    r37.0<8;1>:f      r12.0<8;1>:f      r20.4<0>:f       {Compacted,@4}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r13.0<8;1>:f      r17.5<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r13.0<8;1>:f      r18.5<0>:f
        mad (8|M0)               r44.0<1>:f    r40.0<8;1>:f      r13.0<8;1>:f      r19.5<0>:f       {Compacted,@4}
        mad (8|M0)               r45.0<1>:f    r41.0<8;1>:f      r13.0<8;1>:f      r20.5<0>:f       {Compacted,@4}
        mad (8|M0)               acc0.0<1>:f   acc0.0<8;1>:f     r14.0<8;1>:f      r17.6<0>:f
        mad (8|M0)               acc1.0<1>:f   acc1.0<8;1>:f     r14.0<8;1>:f      r18.6<0>:f
        mad (8|M0)               r48.0<1>:f    r44.0<8;1>:f      r14.0<8;1>:f      r19.6<0>:f       {Compacted,@4}
        mad (8|M0)               r49.0<1>:f    r45.0<8;1>:f      r14.0<8;1>:f      r20.6<0>:f       {Compacted,@4}
        mad (8|M0)               r51.0<1>:f    acc0.0<8;1>:f     r15.0<8;1>:f      r17.7<0>:f
        mad (8|M0)               r53.0<1>:f    acc1.0<8;1>:f     r15.0<8;1>:f      r18.7<0>:f
        mad (8|M0)               r52.0<1>:f    r48.0<8;1>:f      r15.0<8;1>:f      r19.7<0>:f       {Compacted,@4}
        mad (8|M0)               r55.0<1>:f    r49.0<8;1>:f      r15.0<8;1>:f      r20.7<0>:f       {Compacted,@4}
(W)     csel (4|M0)   (eq)f0.0   r0.0<1>:w     r0.0<4;1>:w       r0.0<4;1>:w       r0.0<1>:w
(f0.1)  while (8|M0)                         _0_034
// B004: Preds:{B001, B003},  Succs:{B005, B009}
_0_033:
        endif (8|M0)                         L984
L984:
(W)     add (1|M0)               r2.0<1>:d     r50.4<0;1,0>:d    -r6.2<0;1,0>:d
(W)     add (2|M0)               r54.4<1>:d    r61.0<2;2,1>:d    r2.0<0;1,0>:d    {Compacted,@1}
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r54.4<0;1,0>:d    r6.0<0;1,0>:d    {@1}
        add (8|M0)               r56.0<1>:d    r54.5<0;1,0>:d    r50.0<8;8,1>:uw
(f0.1)  cmp (8|M0)    (lt)f0.1   null<1>:d     r56.0<8;8,1>:d    r6.1<0;1,0>:d    {@1}
(W)     csel (4|M0)   (eq)f0.0   r0.0<1>:w     r0.0<4;1>:w       r0.0<4;1>:w       r0.0<1>:w        {@7}
(f0.1)  if (8|M0)                            _0_035            _0_035
