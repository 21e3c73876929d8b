---------------------------- MODULE LedgersBugs ----------------------------
(***************************************************************************)
(* Ways to break the rules of Ledgers, one operator each, for bugs/.       *)
(***************************************************************************)
EXTENDS Ledgers

\* In place of Acks: one acknowledgement is enough.
OneAck == 1

\* In place of Counted: the acknowledgements of a bookie that was replaced count.
CountedFromReplaced(entry) == {bookie \in Bookies : <<bookie, entry>> \in taken}

\* In place of FirstChanged: entries are acknowledged while the change is under way.
FirstChangedEarlier == 1 .. writer.lac + 1

\* In place of FirstChanged: the new ensemble begins behind what was in flight.
FirstChangedBehind == {writer.next}

\* In place of Resent: what was in flight is not sent to the new bookie.
ResentNothing(ensembles) == {}

\* In place of IsFenced and IsHeard: one bookie is enough.
OneIsEnough(members, bookies) == bookies # {}

\* In place of Heard: the last answer is taken, not the highest.
HeardLast(lac, told) == told

\* In place of FencedByRead: only fencing fences.
FencedByNoRead(bookie) == {}

\* In place of IsAbsent: one bookie that does not have an entry is enough.
IsAbsentAtOne(entry, absent) == absent # {}

\* In place of MaySayAbsent: silence is taken for absence.
MaySayNothing(bookie, entry) == TRUE

\* In place of IsBack: what was found is not written back before the ledger is closed.
IsBackAtOnce(ensembles, entry) == TRUE

\* In place of IsUnchanged: metadata are replaced whatever they are now.
IsUnchangedUnasked(version) == TRUE

\* In place of ClosedWith: a recovery's own changes of bookies are not committed.
ClosedWithFound(one) == meta.ensembles

\* In place of Committed: a reader believes the last entry and not the LAC in it.
CommittedIfThere(bookie) == MaxOf({0} \cup {entry \in Entries : <<bookie, entry>> \in stored})
=============================================================================
