import sys, json
import pytest
from tests.audit.test_mutant_table import *
from tests.mutants.process_bugs import ACTORS
def main():
    from recollect.audit import env_checks
    out=[]
    for m in ACTORS[:9]:
        for case in ("actors in processes","actors that run ahead"):
            with pytest.MonkeyPatch.context() as patch:
                try:
                    m.apply(patch); c=verdict(case,"versions")
                except Exception as e:
                    print(m.name,case,"EXC",repr(e)[:200]); continue
            print(m.name,"|",case,"|",c.status,"|",c.found[:150],flush=True)
            if c.status=="failed":
                out.append({"bug":m.name,"training":case,"check":"versions"}); break
    json.dump(out,open('/tmp/extra.json','w'))
if __name__=="__main__": main()
