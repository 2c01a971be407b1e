//.kernel sgemm_intel_block_read
//.platform DG2
//.thread_config numGRF=128, numAcc=4, numSWSB=16
//.declare  (221)  rf=r size=32 type=ud align=16 words (r7.0)
//.declare  (222)  rf=r size=32 type=ud align=16 words (r7.0)
//.declare  (248)  rf=r size=32 type=ud align=16 words (r0.0)
//.declare  (249)  rf=r size=32 type=ud align=16 words (r127.0)
//.declare  (250)  rf=r size=128 type=ud align=16 words (r2.0)
//.declare  (251)  rf=r size=32 type=ud align=16 words (r6.0)
// B003: [inDivergent],  Preds:{B001},  Succs:{B004}
_0_031:
        join (8|M0)                          _0_033
L408:
(W)     mul (1|M0)               acc0.0<1>:d   r48.7<0;1,0>:d    r2.8<0;1,0>:uw
(W)     mach (1|M0)              r2.0<1>:d     r48.7<0;1,0>:d    r2.4<0;1,0>:d
(W)     mul (1|M0)               acc0.0<1>:d   r48.7<0;1,0>:d    r2.10<0;1,0>:uw
(W)     shl (1|M0)               r49.4<1>:d    r48.1<0;1,0>:d    5:w
(W)     mov (1|M0)               r49.2<1>:d    0:w
        mov (8|M0)               r54.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r53.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r52.0<1>:f    0x0:f                               {Compacted}
        mov (8|M0)               r51.0<1>:f    0x0:f                               {Compacted,I@7}
(W)     add (1|M0)               r49.3<1>:d    r2.0<0;1,0>:d     r49.0<0;1,0>:d   {Compacted,I@4}
(W)     mach (1|M0)              r55.0<1>:d    r48.7<0;1,0>:d    r2.5<0;1,0>:d
// B004: [inDivergent],  Preds:{B004, B003},  Succs:{B005, B004}
_0_034:
(W)     mov (8|M0)               r7.0<1>:ud    r48.0<1;1,0>:ud
(W)     add (1|M0)               r7.1<1>:d     r55.0<0;1,0>:d    r49.2<0;1,0>:d   {I@2}
(W)     mov (1|M0)               r7.0<1>:d     r49.4<0;1,0>:d
(W)     mov (1|M0)               r7.2<1>:ud    0x7001F:ud
(W)     send.dc1 (8|M0)          r8       r7      null:0  0x0            0x02890001           {A@1,$2}
(W)     shl (1|M0)               r7.0<1>:d     r49.2<0;1,0>:d    2:w               {Compacted,$2.src}
(W)     mov (1|M0)               r7.1<1>:d     r49.3<0;1,0>:d
(W)     mov (1|M0)               r7.2<1>:ud    0x3001F:ud
(W)     add (1|M0)               r49.2<1>:d    r49.2<0;1,0>:d    8:w
(W)     send.dc1 (8|M0)          r16      r7      null:0  0x0            0x02490000           {A@2,$3}
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r49.2<0;1,0>:d    r5.2<0;1,0>:d    {I@1}
        sync.allwr                           ($2,$3)
        mad (8|M0)               acc0.0<1>:f   r51.0<1;0>:f      r8.0<1;0>:f       r16.0<0>:f       {Compacted,F@1}
        mad (8|M0)               acc1.0<1>:f   r52.0<1;0>:f      r8.0<1;0>:f       r17.0<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   r53.0<1;0>:f      r8.0<1;0>:f       r18.0<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   r54.0<1;0>:f      r8.0<1;0>:f       r19.0<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r9.0<1;0>:f       r16.1<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r9.0<1;0>:f       r17.1<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r9.0<1;0>:f       r18.1<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r9.0<1;0>:f       r19.1<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r10.0<1;0>:f      r16.2<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r10.0<1;0>:f      r17.2<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r10.0<1;0>:f      r18.2<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r10.0<1;0>:f      r19.2<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r11.0<1;0>:f      r16.3<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r11.0<1;0>:f      r17.3<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r11.0<1;0>:f      r18.3<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r11.0<1;0>:f      r19.3<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r12.0<1;0>:f      r16.4<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r12.0<1;0>:f      r17.4<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r12.0<1;0>:f      r18.4<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r12.0<1;0>:f      r19.4<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r13.0<1;0>:f      r16.5<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r13.0<1;0>:f      r17.5<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r13.0<1;0>:f      r18.5<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r13.0<1;0>:f      r19.5<0>:f       {Compacted}
        mad (8|M0)               acc0.0<1>:f   acc0.0<1;0>:f     r14.0<1;0>:f      r16.6<0>:f       {Compacted}
        mad (8|M0)               acc1.0<1>:f   acc1.0<1;0>:f     r14.0<1;0>:f      r17.6<0>:f       {Compacted}
        mad (8|M0)               acc2.0<1>:f   acc2.0<1;0>:f     r14.0<1;0>:f      r18.6<0>:f       {Compacted}
        mad (8|M0)               acc3.0<1>:f   acc3.0<1;0>:f     r14.0<1;0>:f      r19.6<0>:f       {Compacted}
        mad (8|M0)               r51.0<1>:f    acc0.0<1;0>:f     r15.0<1;0>:f      r16.7<0>:f       {Compacted}
        mad (8|M0)               r52.0<1>:f    acc1.0<1;0>:f     r15.0<1;0>:f      r17.7<0>:f       {Compacted}
        mad (8|M0)               r53.0<1>:f    acc2.0<1;0>:f     r15.0<1;0>:f      r18.7<0>:f       {Compacted}
        mad (8|M0)               r54.0<1>:f    acc3.0<1;0>:f     r15.0<1;0>:f      r19.7<0>:f       {Compacted}
(f0.1)  goto.b (8|M0)                        _0_033            _0_034
// B005: Preds:{B004, B002},  Succs:{B006, B010}
_0_033:
        join (8|M0)                          L1016
L1016:
(W)     add3 (1|M0)              r49.6<1>:d    r49.0<0;0>:d      r49.2<0;0>:d      -r5.2<0>:d
(W)     add (1|M0)               r49.5<1>:d    r49.2<0;1,0>:d    -r5.2<0;1,0>:d
        mov (8|M0)               r7.0<1>:ud    r50.0<1;1,0>:uw
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r49.6<0;1,0>:d    r5.0<0;1,0>:d    {I@3}
        add3 (8|M0)              r56.0<1>:d    r49.1<0;0>:d      r49.5<0;0>:d      r7.0<1>:ud       {I@2}
(f0.1)  cmp (8|M0)    (lt)f0.1   null<1>:d     r56.0<1;1,0>:d    r5.1<0;1,0>:d    {I@1}
(~f0.1) goto (8|M0)                          _0_035            _0_035
