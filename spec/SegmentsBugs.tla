--------------------------- MODULE SegmentsBugs ---------------------------
(***************************************************************************)
(* Ways to break the rules of Segments, one operator each, for bugs/.      *)
(***************************************************************************)
EXTENDS Segments

\* In place of Recovered: recovery goes on in the old segment.
RecoveredInPlace(kept) == {[files EXCEPT ![Len(files)].bytes = SubSeq(@, 1, kept), ![Len(files)].synced = kept]}

\* In place of Key: a chunk's name without its term.
KeyWithoutTerm(number, term, chunk) == [number |-> number, term |-> 0, chunk |-> chunk]

\* In place of Durable: acknowledged and shown before the sync.
DurableWhenWritten(file) == Len(file.bytes)

\* In place of Recoverable: recovery keeps less than was synced.
RecoverableFromNothing(file) == 0 .. Len(file.bytes)
=============================================================================
