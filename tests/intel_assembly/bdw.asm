//.kernel sgemm_intel_block_read
//.platform BDW
//.thread_config numGRF=128, numAcc=2
//.declare  (432)  rf=r size=8 type=q align=4 words (r84.0)
//.declare  (433)  rf=r size=8 type=q align=4 words (r8.0)
//.declare  (434)  rf=r size=64 type=q align=16 words (r91.0)
//.declare  (435)  rf=r size=8 type=q align=4 words (r84.0)
//.declare  (436)  rf=r size=8 type=q align=4 words (r8.0)
//.declare  (437)  rf=r size=64 type=q align=16 words (r91.0)
// B002: Preds:{B000},  Succs:{B003}
_0_031:
(W)     mul (1|M0)               r1.0<1>:d     r0.7<0;1,0>:d     r3.4<0;1,0>:d
(W)     mul (1|M0)               r123.0<1>:d   r0.7<0;1,0>:d     r3.5<0;1,0>:d
(W)     shl (1|M0)               r32.0<1>:d    r0.1<0;1,0>:d     5:w
(W)     mov (1|M0)               r124.0<1>:d   0:w
        mov (8|M0)               r30.0<1>:f    0x0:f
        mov (8|M0)               r125.0<1>:f   0x0:f
        mov (8|M0)               r29.0<1>:f    0x0:f
        mov (8|M0)               r126.0<1>:f   0x0:f
(W)     add (1|M0)               r31.0<1>:d    r1.0<0;1,0>:d     r46.0<0;1,0>:d   {Compacted}
// B003: Preds:{B003, B002},  Succs:{B004, B003}
_0_034:
(W)     mov (8|M0)               r1.0<1>:ud    r0.0<8;8,1>:ud                   {Compacted}
(W)     add (1|M0)               r1.1<1>:d     r123.0<0;1,0>:d   r124.0<0;1,0>:d
(W)     mov (1|M0)               r1.0<1>:d     r32.0<0;1,0>:d                   {Compacted}
(W)     mov (1|M0)               r1.2<1>:ud    0x7001F:ud
(W)     send (8|M0)              r8:f     r1:f    0xC            0x02890001
(W)     shl (1|M0)               r1.0<1>:d     r124.0<0;1,0>:d   2:w
(W)     mov (1|M0)               r1.1<1>:d     r31.0<0;1,0>:d
(W)     mov (1|M0)               r1.2<1>:ud    0x3001F:ud
(W)     add (1|M0)               r124.0<1>:d   r124.0<0;1,0>:d   8:w
(W)     send (8|M0)              r83:f    r1:f    0xC            0x02490000
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r124.0<0;1,0>:d   r6.2<0;1,0>:d
        mad (8|M0)               r87.0<1>:f    r126.0<2;1>:f     r8.0<2;1>:f       r83.0<0>:f       {Compacted}
        mad (8|M0)               r88.0<1>:f    r29.0<2;1>:f      r8.0<2;1>:f       r84.0<0>:f       {Compacted}
        mad (8|M0)               r89.0<1>:f    r125.0<2;1>:f     r8.0<2;1>:f       r85.0<0>:f       {Compacted}
        mad (8|M0)               r90.0<1>:f    r30.0<2;1>:f      r8.0<2;1>:f       r86.0<0>:f       {Compacted}
        mad (8|M0)               r16.0<1>:f    r87.0<2;1>:f      r9.0<2;1>:f       r83.1<0>:f       {Compacted}
        mad (8|M0)               r17.0<1>:f    r88.0<2;1>:f      r9.0<2;1>:f       r84.1<0>:f       {Compacted}
        mad (8|M0)               r18.0<1>:f    r89.0<2;1>:f      r9.0<2;1>:f       r85.1<0>:f       {Compacted}
        mad (8|M0)               r19.0<1>:f    r90.0<2;1>:f      r9.0<2;1>:f       r86.1<0>:f       {Compacted}
        mad (8|M0)               r20.0<1>:f    r16.0<2;1>:f      r10.0<2;1>:f      r83.2<0>:f       {Compacted}
        mad (8|M0)               r21.0<1>:f    r17.0<2;1>:f      r10.0<2;1>:f      r84.2<0>:f       {Compacted}
        mad (8|M0)               r91.0<1>:f    r18.0<2;1>:f      r10.0<2;1>:f      r85.2<0>:f       {Compacted}
        mad (8|M0)               r92.0<1>:f    r19.0<2;1>:f      r10.0<2;1>:f      r86.2<0>:f       {Compacted}
        mad (8|M0)               r93.0<1>:f    r20.0<2;1>:f      r11.0<2;1>:f      r83.3<0>:f       {Compacted}
        mad (8|M0)               r94.0<1>:f    r21.0<2;1>:f      r11.0<2;1>:f      r84.3<0>:f       {Compacted}
        mad (8|M0)               r95.0<1>:f    r91.0<2;1>:f      r11.0<2;1>:f      r85.3<0>:f       {Compacted}
        mad (8|M0)               r96.0<1>:f    r92.0<2;1>:f      r11.0<2;1>:f      r86.3<0>:f       {Compacted}
        mad (8|M0)               r97.0<1>:f    r93.0<2;1>:f      r12.0<2;1>:f      r83.4<0>:f       {Compacted}
        mad (8|M0)               r22.0<1>:f    r94.0<2;1>:f      r12.0<2;1>:f      r84.4<0>:f       {Compacted}
        mad (8|M0)               r23.0<1>:f    r95.0<2;1>:f      r12.0<2;1>:f      r85.4<0>:f       {Compacted}
        mad (8|M0)               r24.0<1>:f    r96.0<2;1>:f      r12.0<2;1>:f      r86.4<0>:f       {Compacted}
        mad (8|M0)               r25.0<1>:f    r97.0<2;1>:f      r13.0<2;1>:f      r83.5<0>:f       {Compacted}
        mad (8|M0)               r26.0<1>:f    r22.0<2;1>:f      r13.0<2;1>:f      r84.5<0>:f       {Compacted}
        mad (8|M0)               r27.0<1>:f    r23.0<2;1>:f      r13.0<2;1>:f      r85.5<0>:f       {Compacted}
        mad (8|M0)               r98.0<1>:f    r24.0<2;1>:f      r13.0<2;1>:f      r86.5<0>:f       {Compacted}
        mad (8|M0)               r99.0<1>:f    r25.0<2;1>:f      r14.0<2;1>:f      r83.6<0>:f       {Compacted}
        mad (8|M0)               r100.0<1>:f   r26.0<2;1>:f      r14.0<2;1>:f      r84.6<0>:f       {Compacted}
        mad (8|M0)               r101.0<1>:f   r27.0<2;1>:f      r14.0<2;1>:f      r85.6<0>:f       {Compacted}
        mad (8|M0)               r102.0<1>:f   r98.0<2;1>:f      r14.0<2;1>:f      r86.6<0>:f       {Compacted}
        mad (8|M0)               r126.0<1>:f   r99.0<2;1>:f      r15.0<2;1>:f      r83.7<0>:f       {Compacted}
        mad (8|M0)               r29.0<1>:f    r100.0<2;1>:f     r15.0<2;1>:f      r84.7<0>:f       {Compacted}
        mad (8|M0)               r125.0<1>:f   r101.0<2;1>:f     r15.0<2;1>:f      r85.7<0>:f       {Compacted}
        mad (8|M0)               r30.0<1>:f    r102.0<2;1>:f     r15.0<2;1>:f      r86.7<0>:f       {Compacted}
(W&f0.1) jmpi                                _0_034
// B004: Preds:{B003, B001},  Succs:{B005, B009}
_0_033:
(W)     add (1|M0)               r1.0<1>:d     r124.0<0;1,0>:d   -r6.2<0;1,0>:d   {Compacted}
(W)     add (2|M0)               r111.0<1>:d   r46.0<2;2,1>:d    r1.0<0;1,0>:d
        add (8|M0)               r122.0<1>:d   r111.1<0;1,0>:d   r28.0<8;8,1>:uw
(W)     cmp (8|M0)    (lt)f0.1   null<1>:d     r111.0<0;1,0>:d   r6.0<0;1,0>:d
(f0.1)  cmp (8|M0)    (lt)f0.1   null<1>:d     r122.0<8;8,1>:d   r6.1<0;1,0>:d
(f0.1)  if (8|M0)                            _0_035            _0_035
// B005: [inDivergent],  Preds:{B004},  Succs:{B006, B007}
_0_036:
(W)     cmp (8|M0)    (ne)f1.1   null<1>:f     r6.5<0;1,0>:f     0x0:f
